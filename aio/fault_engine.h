// Faults on purpose, for tests and rehearsals: decorators that go wrong exactly as planned and are otherwise
// transparent. A plan is an explicit list, so that a failing run can be printed and repeated; seeded_faults()
// makes one.
//
//   FaultEngine     counts requests, above the common engine: what a user of engines must survive.
//   FaultTransport  counts pieces, below it: what the common engine must hide (short transfers, EINTR) or
//   report.
//
// They allocate as they go and must never be part of a training run that is not a test.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <terrace/aio/transport.h>
#include <terrace/base/clock.h>

namespace terrace::io {

enum class FaultKind : uint8_t {
  fail,            // moves `bytes` bytes, then ends with `error` (EIO, ENOSPC, kEndOfFile ...)
  short_transfer,  // moves only `bytes` bytes and says so; FaultTransport only: an Engine never ends short
  delay,           // completes no sooner than `delay_ns` after it was submitted
  corrupt_read,    // flips the lowest bit of byte `bytes` of what was read
  torn_write,      // moves only `bytes` bytes and claims all
};

// In a Fault's index: every request, or piece.
inline constexpr uint64_t kEveryIndex = UINT64_MAX;

// What happens to request (or piece) number `index`, counted from 0 in the order of submission. Several
// faults may name one index.
struct Fault {
  uint64_t index;
  FaultKind kind;
  uint64_t bytes = 0;
  int error = EIO;
  uint64_t delay_ns = 0;
};

// `prototype` at about `per_million` of a million of the indices in [0, count), chosen by the seed.
std::vector<Fault> seeded_faults(uint64_t seed, uint64_t count, uint32_t per_million, const Fault& prototype);

// How delayed completions see time pass. A blocking call with nothing else to wait for sleeps until the next
// one is due.
struct FaultTime {
  const Clock* clock;
  std::function<void(uint64_t ns)> sleep;
};
// Real time.
FaultTime real_time();
// Sleeping advances the clock: blocking calls simulate time and take none. `clock` must outlive the engine.
FaultTime simulated_time(FakeClock& clock);

class FaultEngine final : public Engine {
 public:
  FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> plan, FaultTime time = real_time());
  ~FaultEngine() override;
  FaultEngine(const FaultEngine&) = delete;
  FaultEngine& operator=(const FaultEngine&) = delete;

  EngineKind kind() const override { return base_->kind(); }
  const EngineOptions& options() const override { return base_->options(); }
  void submit(std::span<const Request> requests) override;
  size_t poll() override;
  size_t wait(size_t min_count) override;
  void wake() noexcept override;
  uint64_t in_flight() const override { return in_flight_; }
  bool register_buffer(std::span<std::byte> memory) override { return base_->register_buffer(memory); }
  void unregister_buffer(std::span<std::byte> memory) override { base_->unregister_buffer(memory); }
  bool register_file(int fd) override { return base_->register_file(fd); }
  void unregister_file(int fd) override { base_->unregister_file(fd); }
  std::string_view registration_refusal() const override { return base_->registration_refusal(); }
  // The base's; a request that failed without reaching it counts nowhere.
  EngineStats stats() const override { return base_->stats(); }
  // Requests that a fault was planned for.
  uint64_t faults_done() const { return faults_done_; }

 private:
  struct Tracked;
  static void on_base_complete(void* context, const Completion& completion) noexcept;
  Request start(const Request& request, bool& goes_to_base);
  void finish(Tracked& tracked, const Completion& completion);
  void run(Tracked& tracked, const Completion& completion);
  void run_due();

  std::unique_ptr<Engine> base_;
  const std::vector<Fault> plan_;
  const FaultTime time_;
  std::vector<std::unique_ptr<Tracked>> tracked_;
  std::vector<Tracked*> free_;
  std::vector<Tracked*> held_;  // finished below, not yet due
  uint64_t next_index_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t completed_ = 0;
  uint64_t faults_done_ = 0;
  std::atomic<bool> woken_{false};
};

// A piece that fails moves nothing.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> base, std::vector<Fault> plan, FaultTime time = real_time());
  ~FaultTransport() override;

  EngineKind kind() const override { return base_->kind(); }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override { base_->wake(); }
  bool register_buffer(std::span<std::byte> memory) override { return base_->register_buffer(memory); }
  void unregister_buffer(std::span<std::byte> memory) override { base_->unregister_buffer(memory); }
  bool register_file(int fd) override { return base_->register_file(fd); }
  void unregister_file(int fd) override { base_->unregister_file(fd); }
  std::string_view registration_refusal() const override { return base_->registration_refusal(); }
  TransportStats stats() const override { return base_->stats(); }

 private:
  struct Tracked;
  void finish(uint32_t id, int64_t result);
  size_t take_due(std::span<PieceResult> results);

  std::unique_ptr<Transport> base_;
  const std::vector<Fault> plan_;
  const FaultTime time_;
  std::vector<Tracked> tracked_;  // by piece id
  std::vector<uint32_t> finished_;
  uint64_t next_index_ = 0;
  uint64_t in_base_ = 0;
};

}  // namespace terrace::io
