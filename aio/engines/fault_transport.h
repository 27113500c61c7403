// FaultTransport: faults on purpose, for rehearsals and tests. A decorator that goes wrong exactly as a
// FaultPlan says and is otherwise transparent. It counts pieces, below the common engine, which must hide its
// faults (short transfers, EINTR) or report them. It allocates as it goes and must never be part of a
// training run that is not a test or a rehearsal.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/aio/engines/transport.h>
#include <terrace/base/mutex.h>

namespace terrace::io {

// Waits for a moment as the FaultTime says. wake() is thread-safe and holds until take_woken().
class FaultSleeper {
 public:
  // Returns at once when it has been woken.
  void sleep_until(const FaultTime& time, uint64_t due_ns);
  void wake() noexcept;
  bool take_woken();

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool woken_ TERRACE_GUARDED_BY(mutex_) = false;
};

// A piece that fails moves nothing; a piece that fills the drive is short, and the pieces
// after it fail.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> base, std::vector<Fault> faults, FaultTime time = real_time());
  FaultTransport(std::unique_ptr<Transport> base, FaultPlan& plan);
  ~FaultTransport() override;

  EngineKind kind() const override { return base_->kind(); }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> memory) override { return base_->register_buffer(memory); }
  void unregister_buffer(std::span<std::byte> memory) override { base_->unregister_buffer(memory); }
  bool register_file(int fd) override { return base_->register_file(fd); }
  void unregister_file(int fd) override { base_->unregister_file(fd); }
  std::string_view registration_refusal() const override { return base_->registration_refusal(); }
  TransportStats stats() const override { return base_->stats(); }

 private:
  struct Tracked;
  FaultTransport(std::unique_ptr<Transport> base, std::unique_ptr<FaultPlan> own_plan);
  void finish(uint32_t id, int64_t result);
  size_t take_due(std::span<PieceResult> results);

  std::unique_ptr<Transport> base_;
  std::unique_ptr<FaultPlan> own_plan_;
  FaultPlan& plan_;
  FaultSleeper sleeper_;
  std::vector<Tracked> tracked_;  // by piece id
  std::vector<uint32_t> finished_;
  uint64_t in_base_ = 0;
};

}  // namespace terrace::io
