// Law 5, overlap: a streamed update keeps as many requests in flight as it may, counted under an injected
// clock in which every request takes 20 ms and nothing else takes any time.
#include <gtest/gtest.h>

#include <terrace/aio/engines/fault_transport.h>
#include <terrace/memory/device/simulated_device.h>

#include "offload/toy_training.h"
#include "support/simulated_time.h"

namespace terrace::overlap_law_test {
namespace {

constexpr uint64_t kRequestNs = 20'000'000;
constexpr uint32_t kRingSlots = 12;  // some are read, some are written, one is computed in

struct SimulatedUpdate {
  uint64_t requests = 0;
  uint64_t elapsed_ns = 0;
};

// The second update of a toy with its states on nvme and most of them streamed, `depth` requests at a time.
SimulatedUpdate update_with(uint32_t depth) {
  std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  specs.push_back({"unused", {150, kTileElements}, DataType::bf16, true, 0, 1});
  const FlatSpace space(specs, kTileElements);
  const std::vector<TensorUse> uses = toy::trace(specs, 1);
  const ScratchFolder folder;
  OffloadOptions options = toy::least_nvme_options(space, uses, folder.path());
  options.parameters = Placement::cpu;
  options.host_budget_bytes = kGiB;
  options.host_budget_bytes = plan_memory(space, uses, options).host_minimum_bytes;
  while (plan_memory(space, uses, options).ring_slots < kRingSlots)
    options.host_budget_bytes += RecordLayout{}.tile_bytes();
  const uint32_t streamed =
      space.chunk_count() - static_cast<uint32_t>(plan_memory(space, uses, options).host_record_slots);
  EXPECT_GE(streamed, 40u);
  options.io.queue_depth = depth;
  FakeClock clock;
  io::FaultPlan slow({{.kind = io::FaultKind::delay, .delay_ns = kRequestNs}}, io::simulated_time(clock));
  MemoryLog log;
  io::Engine* engine = nullptr;
  options.hooks.decorate_engine = [&](std::unique_ptr<io::Engine> made) -> std::unique_ptr<io::Engine> {
    if (engine != nullptr) return made;
    const io::EngineOptions io = made->options();
    auto slowed =
        io::make_engine_over(std::make_unique<io::FaultTransport>(io::make_transport(io), slow), io);
    engine = slowed.get();
    return slowed;
  };
  Workers workers(1);
  SimulatedDevice device({options.device_budget_bytes});
  Offloader offloader(space, options, uses, device, workers, log);
  toy::initialise(offloader);
  const std::vector<OptimizerSettings> groups = toy::groups();
  SimulatedUpdate simulated;
  for (uint64_t step = 1; step <= 2; ++step) {
    offloader.begin_step();
    toy::run_micro_batch(offloader, specs, 0);
    offloader.end_micro_batch();
    const uint64_t start_ns = clock.now_ns();
    const uint64_t pieces = engine->stats().pieces;
    offloader.update({groups, step, 0});
    simulated = {engine->stats().pieces - pieces, clock.now_ns() - start_ns};
  }
  EXPECT_EQ(simulated.requests, 2 * streamed);
  return simulated;
}

TEST(OverlapLaw, AStreamedUpdateAtDepthFourTakesAtMostThreeTenthsOfTheSerialTime) {
  const SimulatedUpdate one = update_with(1);
  const SimulatedUpdate four = update_with(4);
  EXPECT_EQ(one.requests, four.requests);
  EXPECT_EQ(one.elapsed_ns, one.requests * kRequestNs);
  EXPECT_LE(static_cast<double>(four.elapsed_ns), 0.3 * static_cast<double>(one.elapsed_ns))
      << four.elapsed_ns / kRequestNs << " rounds for " << four.requests << " requests";
  EXPECT_GE(four.elapsed_ns, one.elapsed_ns / 4) << "no more than four at a time";
}

}  // namespace
}  // namespace terrace::overlap_law_test
