// Several paths as one: the update runs at the rate of all of them together, whatever each of them does.
// Every path is a token bucket under an injected clock in which nothing but the paths takes time.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/memory/device/simulated_device.h>

#include "offload/toy_training.h"
#include "support/fault_engine.h"
#include "support/offloaders.h"
#include "support/simulated_time.h"

namespace terrace::path_law_test {
namespace {

constexpr uint32_t kRingSlots = 12;
constexpr uint64_t kChunkElements = 32 * kTileElements;  // two blocks
constexpr uint64_t kTiles = 2240;                        // of which the budget caches less than half
constexpr uint64_t kFast = 1'000'000'000;
constexpr uint32_t kSteps = 9;

struct Update {
  uint64_t bytes = 0;  // of records, read and written
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  std::vector<uint64_t> path_bytes;  // over each path since the start

  // The part of what paths of these rates together can move.
  double efficiency(double bytes_per_second) const {
    return static_cast<double>(bytes) / bytes_per_second / (static_cast<double>(end_ns - begin_ns) * 1e-9);
  }
};

struct Training {
  std::vector<Update> updates;
  std::vector<std::byte> parameters;
};

struct Setting {
  bool durable = true;
  uint32_t accumulation = 1;  // above 1 parameters leave through a landing slot, chunk by chunk
  std::vector<double> measured = {0, 0};
};

class PathLaw : public ::testing::Test {
 protected:
  PathLaw() : specs_(toy::tensors(DataType::bf16, false)) {
    specs_.push_back({"unused", {kTiles, kTileElements}, DataType::bf16, true, 0, 1});
  }
  std::string path(size_t index) const { return folders_[index].path().string(); }
  io::Fault rate(size_t index, uint64_t bytes_per_second, uint64_t from_ns = 0) const {
    io::Fault fault{.kind = io::FaultKind::rate_limit, .bytes_per_second = bytes_per_second};
    fault.path = path(index);
    fault.from_ns = from_ns;
    return fault;
  }
  OffloadOptions options(const FlatSpace& space, const std::vector<TensorUse>& uses,
                         const Setting& setting) const {
    OffloadOptions options = toy::least_nvme_options(space, uses, folders_[0].path());
    options.parameters = Placement::cpu;
    options.state_paths = {{path(0), setting.measured[0]}, {path(1), setting.measured[1]}};
    options.durable = setting.durable;
    options.micro_batches = setting.accumulation;
    options.device_budget_bytes = useful_device_bytes(testing::plan_roomy(options, space, uses));
    options.host_budget_bytes = plan_memory(space, uses, options).host_holding_bytes;
    while (plan_memory(space, uses, options).ring_slots < kRingSlots)
      options.host_budget_bytes += 16 * RecordLayout{}.tile_bytes();
    return options;
  }

  // A few steps over paths that these faults slow.
  Training train(const std::vector<io::Fault>& faults, const Setting& setting) {
    const FlatSpace space(specs_, kChunkElements);
    const std::vector<TensorUse> uses = toy::trace(specs_, setting.accumulation);
    OffloadOptions offload = options(space, uses, setting);
    FakeClock clock;
    io::FaultPlan plan(faults, io::simulated_time(clock));
    offload.hooks.clock = &clock;
    offload.hooks.decorate_engine = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      return std::make_unique<io::FaultEngine>(std::move(engine), plan);
    };
    MemoryLog log;
    Workers workers(1);
    SimulatedDevice device({offload.device_budget_bytes});
    Offloader offloader(space, offload, uses, device, workers, log);
    toy::initialise(offloader);
    Training training;
    const std::vector<OptimizerSettings> groups = toy::groups();
    for (uint64_t step = 1; step <= kSteps; ++step) {
      offloader.begin_step();
      for (uint32_t m = 0; m < setting.accumulation; ++m) {
        toy::run_micro_batch(offloader, specs_, m);
        offloader.end_micro_batch();
      }
      const OffloadCounters before = offloader.report().counters();
      Update update;
      update.begin_ns = clock.now_ns();
      offloader.update({groups, step, 0});
      update.end_ns = clock.now_ns();
      const OffloadCounters moved = offloader.report().counters() - before;
      update.bytes = moved.record_read_bytes + moved.record_write_bytes;
      for (const NvmePathUse& use : offloader.report().nvme_paths()) update.path_bytes.push_back(use.bytes);
      training.updates.push_back(update);
    }
    training.parameters = testing::parameters_of(offloader, space);
    return training;
  }

  // What is written to the second path of what is written, a step's reads and writes taken together.
  static double second_share(const Training& training, size_t step) {
    const auto moved = [&](size_t p) {
      const uint64_t before = step == 0 ? 0 : training.updates[step - 1].path_bytes[p];
      return static_cast<double>(training.updates[step].path_bytes[p] - before);
    };
    return moved(1) / (moved(0) + moved(1));
  }

  std::vector<TensorSpec> specs_;
  ScratchFolder folders_[2];
};

// What an update can lose at its ends, where the ring fills and drains.
constexpr double kNearlyAll = 0.9;

TEST_F(PathLaw, TwoEqualPathsGiveTwiceTheRateOfOne) {
  const Training training = train({rate(0, kFast), rate(1, kFast)}, {});
  for (const Update& update : training.updates) EXPECT_GE(update.efficiency(2.0 * kFast), kNearlyAll);
}

TEST_F(PathLaw, OneThatSlowsToAQuarterCostsNoMoreThanItsRateFromTheThirdStepOn) {
  for (const bool durable : {true, false}) {
    for (const uint32_t accumulation : {1u, 2u}) {
      SCOPED_TRACE(std::to_string(durable) + " " + std::to_string(accumulation));
      const Setting setting{.durable = durable, .accumulation = accumulation};
      const std::vector<io::Fault> even{rate(0, kFast), rate(1, kFast)};
      const Training before = train(even, setting);
      // In the middle of the third step.
      const uint64_t moment = std::midpoint(before.updates[2].begin_ns, before.updates[2].end_ns);
      std::vector<io::Fault> slowed = even;
      slowed.push_back(rate(1, kFast / 4, moment));
      const Training training = train(slowed, setting);
      for (size_t step = 0; step < kSteps; ++step) {
        const double together = step < 3 ? 2.0 * kFast : 1.25 * kFast;
        if (step == 2 || step == 3) continue;  // it slows in the middle of the first of them
        EXPECT_GE(training.updates[step].efficiency(together), kNearlyAll) << "step " << step + 1;
      }
      EXPECT_NEAR(second_share(training, kSteps - 1), 0.2, 0.06);
      EXPECT_EQ(training.parameters, before.parameters);
    }
  }
}

TEST_F(PathLaw, OneThatRecoversIsUsedAgain) {
  const std::vector<io::Fault> slow{rate(0, kFast), rate(1, kFast / 4)};
  const Training before = train(slow, {});
  const uint64_t moment = std::midpoint(before.updates[3].begin_ns, before.updates[3].end_ns);
  std::vector<io::Fault> recovered = slow;
  recovered.push_back(rate(1, kFast, moment));
  const Training training = train(recovered, {});
  for (size_t step = 6; step < kSteps; ++step)
    EXPECT_GE(training.updates[step].efficiency(2.0 * kFast), kNearlyAll) << "step " << step + 1;
}

TEST_F(PathLaw, UnequalPathsAreUsedByTheirRatesWhetherOrNotTheyWereMeasured) {
  const std::vector<io::Fault> faults{rate(0, 3 * kFast), rate(1, kFast)};
  const Training unknown = train(faults, {});
  const Training measured = train(faults, {.measured = {3e9, 1e9}});
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_GE(measured.updates[step].efficiency(4.0 * kFast), kNearlyAll) << "step " << step + 1;
    if (step < 2) continue;
    EXPECT_GE(unknown.updates[step].efficiency(4.0 * kFast), kNearlyAll) << "step " << step + 1;
  }
  EXPECT_NEAR(second_share(unknown, kSteps - 1), 0.25, 0.05);
  EXPECT_EQ(unknown.parameters, measured.parameters);
}

}  // namespace
}  // namespace terrace::path_law_test
