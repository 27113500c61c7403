// QueuedEngine: the one Engine. It cuts requests into pieces, keeps a transport's queue full, continues short
// transfers, retries interrupted ones, and runs callbacks. It must never allocate after its constructor nor
// know how a transport moves bytes.
//
//   submit -> backlog (per priority) -> pieces in flight (transport) -> ready -> callback
//
// Invariants: every slot is free, or belongs to one request that is in a backlog, only in flight, or ready.
// Only the head of a backlog is partly issued. pieces in flight + free pieces = queue_depth.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <terrace/aio/engines/transport.h>

namespace terrace::io {

class QueuedEngine final : public Engine {
 public:
  QueuedEngine(std::unique_ptr<Transport> transport, const EngineOptions& options);
  ~QueuedEngine() override;
  QueuedEngine(const QueuedEngine&) = delete;
  QueuedEngine& operator=(const QueuedEngine&) = delete;

  EngineKind kind() const override { return transport_->kind(); }
  const EngineOptions& options() const override { return options_; }
  void submit(std::span<const Request> requests) override;
  size_t poll() override;
  size_t wait(size_t min_count) override;
  void wake() noexcept override { transport_->wake(); }
  uint64_t in_flight() const override { return in_flight_; }
  bool register_buffer(std::span<std::byte> memory) override;
  void unregister_buffer(std::span<std::byte> memory) override;
  bool register_file(int fd) override;
  void unregister_file(int fd) override;
  std::string_view registration_refusal() const override { return transport_->registration_refusal(); }
  EngineStats stats() const override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Slot {
    Request request;
    uint64_t issued_bytes;  // cut into pieces so far; the whole request once it has failed
    uint64_t whole_bytes;   // without a gap from the start: bytes, or where the lowest failure lies
    int error;              // of the lowest failure
    uint32_t pieces;        // in flight
    uint32_t next;          // in a free list, backlog or ready list
  };
  struct PieceState {
    Piece piece;
    uint32_t slot;
    uint32_t fruitless_tries;  // EINTR and EAGAIN in a row
    uint32_t rewinds;          // how often it went back to the block in which a short transfer ended
    uint32_t moved_bytes;
  };
  // A call from outside or from a callback, as long as it lasts.
  class Call {
   public:
    explicit Call(QueuedEngine& engine);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    QueuedEngine& engine_;
    bool is_outermost_;
  };
  // Slots linked through Slot::next.
  struct List {
    uint32_t head = kNone;
    uint32_t tail = kNone;
  };

  void append(List& list, uint32_t slot);
  uint32_t pop(List& list);

  void accept(const Request& request);
  void make_room();
  void pump();
  uint32_t next_in_backlog() const;
  void issue_piece(uint32_t slot);
  void reap(bool block);
  void handle(const PieceResult& result);
  void advance(PieceState& state, uint64_t moved_bytes);
  bool at_end_of_file(const PieceState& state) const;
  bool rewind(PieceState& state);
  void fail(PieceState& state, int error);
  void finish_piece(uint32_t id);
  bool run_one_ready();
  void run_ready();

  const EngineOptions options_;
  std::unique_ptr<Transport> transport_;
  std::vector<Slot> slots_;
  std::vector<PieceState> pieces_;
  std::vector<uint32_t> free_pieces_;
  std::vector<Piece> batch_;  // pieces to start next; continuations come first
  std::vector<PieceResult> results_;
  List free_slots_;
  std::array<List, 2> backlog_;  // by Priority
  List ready_;
  uint64_t in_flight_ = 0;
  uint64_t completed_ = 0;
  uint32_t callback_depth_ = 0;
  bool woken_ = false;
  std::atomic<std::thread::id> caller_;  // the thread inside a call
  EngineStats stats_;
};

}  // namespace terrace::io
