// What the rooms of a step are tested on, each alone: three chunks of a tile, one tensor in each, trained by
// SGD with everything below the device in host memory, and a device with room for some of it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/gradients/make_gradients.h>
#include <terrace/offload/state/call_order.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/step/open_leases.h>
#include <terrace/offload/update/early_update.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/update_runner.h>

#include "offload/homes_rig.h"
#include "support/offloaders.h"

namespace terrace {

struct StepRig {
  static constexpr uint32_t kChunks = 3;
  static constexpr float kMaster = 1.0f;

  explicit StepRig(uint32_t device_slots = 2 * kChunks, OffloadOptions wishes = {})
      : options(complete(std::move(wishes))), plan(plan_for(device_slots)) {
    states_to_hold();
    for (uint32_t c = 0; c < kChunks; ++c) set_state(ChunkId{c});
  }

  static OffloadOptions complete(OffloadOptions options) {
    options.parameters = options.states = Placement::cpu;
    options.record_layout = {MasterForm::whole, 0};
    return options;
  }
  MemoryPlan plan_for(uint32_t device_slots) {
    MemoryPlan made = testing::plan_roomy(options, space, {});
    made.device_slots = device_slots;
    return made;
  }
  void states_to_hold() {
    for (uint32_t t = 0; t < kChunks; ++t) states.change(TensorId{t}, TensorState::hold);
  }
  // Masters and parameters of kMaster.
  void set_state(ChunkId chunk) {
    auto* const master = reinterpret_cast<float*>(records.resident(chunk));
    auto* const parameter = reinterpret_cast<Bf16*>(params.host_slot(chunk));
    for (uint64_t e = 0; e < kTileElements; ++e) master[e] = kMaster, parameter[e] = to_bf16(kMaster);
  }
  float master(uint32_t chunk) const {
    return *reinterpret_cast<const float*>(records.resident(ChunkId{chunk}));
  }
  // All of the chunk's gradient has landed below the device, and its tensor waits for the update.
  void land_gradient(uint32_t chunk, float value) {
    make_gradient(cache, ChunkId{chunk}, value);
    runs.complete(TensorId{chunk}, 0);
    gradients->land(runs.take(ChunkId{chunk}, 0, true));
  }
  void land_all(float value) {
    runs.begin_step();
    for (uint32_t c = 0; c < kChunks; ++c) land_gradient(c, value);
    gradients->finish_micro_batch(true);
    for (uint32_t t = 0; t < kChunks; ++t) states.change(TensorId{t}, TensorState::updating);
  }
  OpenUse use(std::string operation, UseKind kind, std::vector<uint32_t> tensors) const {
    OpenUse open;
    open.operation = std::move(operation);
    open.kind = kind;
    for (const uint32_t t : tensors) open.tensors.push_back(TensorId{t}), open.chunks.push_back(ChunkId{t});
    return open;
  }
  UpdateRunner make_runner() { return {run, homes, cache, tiers, {arena, ring}, states}; }

  const FlatSpace space{{{"a", {kTileElements}, DataType::bf16},
                         {"b", {kTileElements}, DataType::bf16},
                         {"c", {kTileElements}, DataType::bf16}},
                        kTileElements};
  const ChunkShards shards{space, 0, 1};
  OffloadOptions options;
  MemoryPlan plan;
  MemoryLog log;
  Workers workers{1};
  SimulatedDevice device{{.budget_bytes = 16 * kMiB}};
  SteadyClock clock;
  TimeAccount account{clock};
  StepWatch watch{&account, nullptr};
  Decisions decisions{nullptr};
  const RunContext run{
      space, shards, options, plan, device, workers, clock, account, watch, log, InstructionSet::scalar};
  HostArena arena{{.budget_bytes = 64 * kMiB, .lock_pages = false}, log};
  TensorStates states{space};
  DeviceCache cache{space, device, plan, Placement::cpu, PolicyKind::opt, states, watch, decisions};
  TierStores tiers{shards, options, plan, device, arena, log};
  io::RingBuffer ring{arena.take(4 * plan.ring_slot_bytes, "a ring"), plan.ring_slot_bytes};
  NoGathers gathers;
  ParamHome params{run, arena, ParameterStores{}, gathers};
  GradientRuns runs{space, StepRounds{}};
  std::unique_ptr<GradientStore> gradients =
      make_gradient_store({run, arena, cache, params.host_slots(), runs, {}, {}});
  RecordStore records{run, arena, nullptr, nullptr};
  TensorSteps steps{kChunks, UnusedGradients::zero};
  const StateHomes homes{params, *gradients, records, runs, steps};
  // SGD, a rate of 1: an update takes the gradient from the master.
  const std::vector<OptimizerSettings> groups = {{.kind = OptimizerKind::sgd, .lr = 1}};
  const UpdateSettings settings{.groups = groups};
};

}  // namespace terrace
