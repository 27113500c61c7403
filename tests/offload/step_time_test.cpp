// What the parts of a step are, under a clock that only moves where the test says so: in operations, and
// while a transfer that was slowed down is waited for.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <terrace/aio/engines/fault_transport.h>
#include <terrace/memory/device/simulated_device.h>

#include "offload/offloader_rig.h"
#include "support/simulated_time.h"

namespace terrace::step_time_test {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kDelayNs = 50 * kMs;
constexpr uint64_t kOperationNs = 100 * kMs;
constexpr uint32_t kChunks = 12;
constexpr uint64_t kNoRead = UINT64_MAX - 1;

// A model of equal chunks, all of whose parameters are on nvme; one read of them takes kDelayNs longer.
class SlowRead {
 public:
  // `delayed_read` counts all reads of parameters from the beginning.
  SlowRead(uint32_t prefetch_uses, uint64_t delayed_read)
      : delayed_read_(delayed_read),
        // With reading ahead nobody should have to wait for it; who does so nevertheless is not left waiting.
        patience_(prefetch_uses > 0 ? 5 : 0),
        plan_({{.index = delayed_read,
                .kind = io::FaultKind::delay,
                .delay_ns = kDelayNs,
                .operation = io::OpKind::read}},
              {&clock_, [this](uint64_t due_ns) { sleep_until(due_ns); }}),
        specs_(kChunks, TensorSpec{"", {kTileElements}, DataType::bf16, true, 0, 1}),
        space_(named(specs_), kTileElements),
        workers_(1) {
    UseRecorder recorder;
    run_micro_batch(recorder, [] {});
    const std::vector<TensorUse> uses = recorder.take_trace();
    OffloadOptions options = toy::least_nvme_options(space_, uses, folder_.path());
    options.states = Placement::cpu;
    options.host_budget_bytes = kGiB;
    options.device_budget_bytes += 4 * plan_memory(space_, uses, options).slot_bytes;
    options.host_budget_bytes = plan_memory(space_, uses, options).host_minimum_bytes;
    options.prefetch_uses = prefetch_uses;
    options.hooks.clock = &clock_;
    uint32_t made = 0;
    options.hooks.decorate_engine = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      if (++made != 2) return engine;  // that of the parameter reads
      const io::EngineOptions io = engine->options();
      return io::make_engine_over(std::make_unique<io::FaultTransport>(io::make_transport(io), plan_), io);
    };
    device_ = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes});
    offloader_ = std::make_unique<Offloader>(space_, options, uses, *device_, workers_, log_);
    EXPECT_GE(made, 2u);
    EXPECT_EQ(offloader_->plan().host_param_slots, 0u);
    offloader_->state().initialise(
        [](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 0.5f); });
  }

  TimeParts step(uint64_t number) {
    const std::vector<OptimizerSettings> groups = toy::groups();
    const TimeParts before = offloader_->report().counters().time;
    offloader_->begin_step();
    run_micro_batch(*offloader_, [this] { operate(); });
    offloader_->end_micro_batch();
    offloader_->update({groups, number, 0});
    return offloader_->report().counters().time - before;
  }
  uint64_t reads_asked_for() const {
    return offloader_->report().counters().param_read_bytes / (kTileElements * bytes_of(DataType::bf16));
  }

 private:
  static std::vector<TensorSpec>& named(std::vector<TensorSpec>& specs) {
    for (size_t t = 0; t < specs.size(); ++t) specs[t].name = "tensor" + std::to_string(t);
    return specs;
  }

  template <typename Operate>
  void run_micro_batch(ParameterAccess& access, Operate operate) {
    for (uint32_t u = 0; u < 2 * kChunks; ++u) {
      const bool forward = u < kChunks;
      const TensorId tensor{forward ? u : 2 * kChunks - 1 - u};
      const Lease lease(access, "use" + std::to_string(u), {&tensor, 1},
                        forward ? UseKind::forward : UseKind::backward);
      if (!forward && lease.parameter<std::byte>(tensor) != nullptr)
        std::memset(lease.gradient(tensor).data, 0, kTileElements * bytes_of(DataType::bf16));
      operate();
    }
  }

  // An operation of kOperationNs. A slow read that was asked for before it is under way while it computes.
  void operate() {
    while (reads_asked_for() > delayed_read_ && plan_.faults_done() == 0) std::this_thread::yield();
    clock_.advance(kOperationNs);
  }

  // Of the thread of the reads: time passes in operations; where the step thread waits for a read none is
  // under way, so it passes here.
  void sleep_until(uint64_t due_ns) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(patience_);
    while (clock_.now_ns() < due_ns) {
      if (std::chrono::steady_clock::now() >= end && step_waits_for_a_read())
        return clock_.advance_to(due_ns);
      std::this_thread::yield();
    }
  }
  bool step_waits_for_a_read() const {
    const StepWatch& watch = offloader_->report().watch();
    const std::optional<uint64_t> wait = watch.current();
    const std::optional<std::string> text = wait ? watch.describe(*wait) : std::nullopt;
    return text && text->find("nvme -> host -> device") != std::string::npos;
  }

  FakeClock clock_;
  const uint64_t delayed_read_;
  const uint64_t patience_;
  io::FaultPlan plan_;
  MemoryLog log_;
  ScratchFolder folder_;
  std::vector<TensorSpec> specs_;
  FlatSpace space_;
  Workers workers_;
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
};

// Of the second step, whose third read is the slow one.
TimeParts step_with_a_slow_read(uint32_t prefetch_uses) {
  uint64_t reads_before = 0;
  {
    SlowRead probe(prefetch_uses, kNoRead);
    probe.step(1);
    reads_before = probe.reads_asked_for();
  }
  SlowRead run(prefetch_uses, reads_before + 2);
  run.step(1);
  const TimeParts parts = run.step(2);
  EXPECT_GT(run.reads_asked_for(), reads_before + 2) << "the slow read is one of the second step";
  return parts;
}

TEST(StepTime, IsAWaitForReadsForAsLongAsAReadIsSlowWhereNothingIsReadAhead) {
  const TimeParts parts = step_with_a_slow_read(0);
  EXPECT_EQ(parts[TimeCause::compute], 2 * kChunks * kOperationNs);
  EXPECT_EQ(parts[TimeCause::read], kDelayNs);
  EXPECT_EQ(parts.total_ns(), 2 * kChunks * kOperationNs + kDelayNs);
}

TEST(StepTime, HidesASlowReadBehindOperationsWhereItIsReadAhead) {
  const TimeParts parts = step_with_a_slow_read(16);
  EXPECT_EQ(parts[TimeCause::compute], 2 * kChunks * kOperationNs);
  EXPECT_EQ(parts[TimeCause::read], 0u);
  EXPECT_EQ(parts.total_ns(), 2 * kChunks * kOperationNs);
}

// Every transfer of the update takes 20 ms, in which the step thread can only wait.
TEST(StepTime, IsAWaitForTheDiskWhereAnUpdateOnTheStepThreadWaitsForIt) {
  FakeClock clock;
  io::FaultPlan slow({{.kind = io::FaultKind::delay, .delay_ns = 20 * kMs}}, io::simulated_time(clock));
  MemoryLog log;
  bool first = true;
  Case c{Placement::cpu, Placement::nvme};
  c.clock = &clock;
  c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    if (!std::exchange(first, false)) return engine;
    const io::EngineOptions io = engine->options();
    return io::make_engine_over(std::make_unique<io::FaultTransport>(io::make_transport(io), slow), io);
  };
  Rig rig(c);
  for (uint64_t number = 1; number <= 2; ++number) {
    const uint64_t begin_ns = clock.now_ns();
    const TimeParts before = rig.offloader->report().counters().time;
    rig.step(number, 1);
    const TimeParts parts = rig.offloader->report().counters().time - before;
    EXPECT_GE(parts.total_ns(), 40 * kMs);
    EXPECT_EQ(parts.total_ns(), clock.now_ns() - begin_ns);
    EXPECT_GT(parts[TimeCause::read], 0u);
    EXPECT_GT(parts[TimeCause::write], 0u);
    EXPECT_EQ(parts[TimeCause::read] + parts[TimeCause::write], parts.total_ns());
  }
}

// A step thread that has to wait for an update beside it waits for what that waits for.
TEST(StepTime, IsAWaitForTheDiskWhereTheUpdateBesideTheStepWaitsForIt) {
  FakeClock clock;
  Offloader* offloader = nullptr;
  // Of the update's thread: time passes when the step thread can do nothing but wait for its end.
  const auto sleep_until = [&](uint64_t due_ns) {
    while (clock.now_ns() < due_ns) {
      const std::optional<uint64_t> wait = offloader->report().watch().current();
      const std::optional<std::string> text =
          wait ? offloader->report().watch().describe(*wait) : std::nullopt;
      if (text && text->find("the end of an update; the update waits for") != std::string::npos)
        return clock.advance_to(due_ns);
      std::this_thread::yield();
    }
  };
  io::FaultPlan slow({{.kind = io::FaultKind::delay, .delay_ns = 20 * kMs}}, {&clock, sleep_until});
  MemoryLog log;
  Case c{Placement::cpu, Placement::nvme};
  c.clock = &clock;
  c.mode = UpdateMode::next_forward;
  uint32_t made = 0;
  c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    if (++made != 2) return engine;  // that of the updates
    const io::EngineOptions io = engine->options();
    return io::make_engine_over(std::make_unique<io::FaultTransport>(io::make_transport(io), slow), io);
  };
  Rig rig(c);
  offloader = rig.offloader.get();
  const TimeParts before = offloader->report().counters().time;
  const uint64_t begin_ns = clock.now_ns();
  rig.step(1, 1);
  offloader->finish_update();
  const TimeParts parts = offloader->report().counters().time - before;
  EXPECT_GE(parts.total_ns(), 40 * kMs);
  EXPECT_EQ(parts.total_ns(), clock.now_ns() - begin_ns);
  EXPECT_EQ(parts[TimeCause::read] + parts[TimeCause::write], parts.total_ns());
}

}  // namespace
}  // namespace terrace::step_time_test
