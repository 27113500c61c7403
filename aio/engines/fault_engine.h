// Faults on purpose, for tests and rehearsals: decorators that go wrong exactly as a FaultPlan says and are
// otherwise transparent.
//
//   FaultEngine     counts requests, above the common engine; users of engines must survive its faults.
//   FaultTransport  counts pieces, below the common engine, which must hide its faults (short transfers,
//                   EINTR) or report them.
//
// They allocate as they go and must never be part of a training run that is not a test or a rehearsal.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>
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

class FaultEngine final : public EngineDecorator {
 public:
  // Makes a plan of its own.
  FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> faults, FaultTime time = real_time());
  // Uses a plan that may be shared and must outlive the engine.
  FaultEngine(std::unique_ptr<Engine> base, FaultPlan& plan);
  ~FaultEngine() override;
  FaultEngine(const FaultEngine&) = delete;
  FaultEngine& operator=(const FaultEngine&) = delete;

  void submit(std::span<const Request> requests) override;
  size_t poll() override;
  size_t wait(size_t min_count) override;
  void wake() noexcept override;
  uint64_t in_flight() const override { return in_flight_; }
  // The plan's count. stats() are the base's, so a request that failed without reaching the base counts
  // nowhere.
  uint64_t faults_done() const { return plan_.faults_done(); }

 private:
  struct Tracked;
  FaultEngine(std::unique_ptr<Engine> base, std::unique_ptr<FaultPlan> own_plan);
  static void on_base_complete(void* context, const Completion& completion) noexcept;
  Request start(const Request& request, bool& goes_to_base);
  void finish(Tracked& tracked, const Completion& completion);
  void run(Tracked& tracked, const Completion& completion);
  void run_due();

  std::unique_ptr<FaultPlan> own_plan_;
  FaultPlan& plan_;
  FaultSleeper sleeper_;
  std::vector<std::unique_ptr<Tracked>> tracked_;
  std::vector<Tracked*> free_;
  std::vector<Tracked*> held_;  // finished below, not yet due
  uint64_t in_flight_ = 0;
  uint64_t completed_ = 0;
};

// FaultTransport: a piece that fails moves nothing; a piece that fills the drive is short, and the pieces
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
