// An Offloader with everything it needs, training the toy model under one combination of options.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

#include "offload/toy_training.h"

namespace terrace {

using toy::Reference;
using toy::ScratchFolder;

struct Case {
  Placement parameters;
  Placement states;
  DataType type = DataType::bf16;
  uint32_t accumulation = 1;
  uint64_t chunk_elements = kTileElements;
  PolicyKind policy = PolicyKind::opt;
  bool tight = true;
  bool strict = true;
  bool announced = true;
  bool with_frozen = false;
  io::EngineKind engine = io::EngineKind::io_uring;
  DataType accumulation_type = DataType::fp32;
  uint64_t d2h_bytes_per_second = 0;  // 0: as fast as memory
  uint64_t h2d_bytes_per_second = 0;
  std::optional<DriveTurnOptions> drive_turns = std::nullopt;
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate = nullptr;
  UpdateMode mode = UpdateMode::after_backward;
  bool holds_gradients = false;  // all of them, whatever else there is room for
  const Clock* clock = nullptr;
  DecisionLog* decisions = nullptr;
  DecisionSource* replay = nullptr;
  bool spills = false;  // all of them, whatever there is on the device
  StepEvents* step_events = nullptr;
  bool layer_major = false;
  // Of a budget, strict or not; null: a SimulatedDevice.
  std::function<std::unique_ptr<Device>(uint64_t budget_bytes, bool strict)> make_device = nullptr;
  bool lock_host_memory = false;
  double processor_share = 1;
  bool reads_past_host = false;  // and compares no checksums
};

// An offloader with everything it needs.
class Rig {
 public:
  explicit Rig(const Case& c, size_t threads = 2)
      : layer_major(c.layer_major),
        specs(toy::tensors(c.type, c.with_frozen, c.layer_major ? 1 : 2)),
        space(specs, c.chunk_elements),
        workers(threads) {
    const std::vector<TensorUse> uses = toy::trace(specs, c.accumulation, c.layer_major);
    options.parameters = c.parameters;
    options.states = c.states;
    options.parameter_paths = options.state_paths = {{folder.path()}};
    options.accumulation_steps = c.accumulation;
    options.layer_major = c.layer_major;
    options.accumulation_type = c.accumulation_type;
    options.policy = c.policy;
    options.io.kind = c.engine;
    options.drive_turns = c.drive_turns;
    options.decorate_engine = c.decorate;
    options.clock = c.clock;
    options.step_events = c.step_events;
    options.decisions = c.decisions;
    options.replay = c.replay;
    options.lock_host_memory = c.lock_host_memory;
    options.processor_share = c.processor_share;
    options.reads_past_host = c.reads_past_host;
    options.verify_checksums = !c.reads_past_host;
    options.device_budget_bytes = options.host_budget_bytes = kGiB;
    const MemoryPlan roomy = plan_memory(space, uses, options);
    options.device_budget_bytes = c.tight ? roomy.device_minimum_bytes : useful_device_bytes(roomy);
    // Tight: nothing is cached. Else about half of the streamed chunks are.
    options.host_budget_bytes =
        c.tight || c.spills ? roomy.host_minimum_bytes : (roomy.host_minimum_bytes + roomy.host_bytes) / 2;
    if (c.holds_gradients || (c.parameters == Placement::none && c.mode != UpdateMode::after_backward))
      options.host_budget_bytes = std::max(options.host_budget_bytes, roomy.host_holding_bytes);
    if (c.make_device) {
      device = c.make_device(options.device_budget_bytes, c.strict);
    } else {
      device = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{
          options.device_budget_bytes, c.strict, c.h2d_bytes_per_second, c.d2h_bytes_per_second});
    }
    offloader = std::make_unique<Offloader>(space, options, c.announced ? uses : std::vector<TensorUse>(),
                                            *device, workers, log);
    offloader->initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = toy::initial_value(index_of(tensor), first + e);
    });
    offloader->set_update_mode(c.mode);
  }

  UpdateResult step(uint64_t number, uint32_t accumulation, const std::string& skip = "",
                    float loss_scale = 1, double clip_norm = 0) {
    return step_skipping(number, std::vector<std::string>(accumulation, skip), loss_scale, clip_norm);
  }

  // skips[m] is left out of micro-batch m.
  UpdateResult step_skipping(uint64_t number, const std::vector<std::string>& skips, float loss_scale = 1,
                             double clip_norm = 0) {
    const std::vector<OptimizerSettings> groups = toy::groups();
    const UpdateSettings settings = {groups, number, clip_norm, loss_scale};
    offloader->begin_step();
    offloader->announce_update(settings);
    if (layer_major) {
      toy::run_layer_major(*offloader, specs, skips, loss_scale);
      offloader->end_micro_batch();
    }
    for (uint32_t m = 0; m < skips.size() && !layer_major; ++m) {
      toy::run_micro_batch(*offloader, specs, m, skips[m], loss_scale);
      offloader->end_micro_batch();
    }
    return offloader->update(settings);
  }

  std::vector<std::byte> parameters(uint32_t tensor) {
    std::vector<std::byte> bytes(specs[tensor].element_count() * bytes_of(specs[tensor].type));
    offloader->read_parameter(TensorId{tensor}, bytes);
    return bytes;
  }

  bool layer_major;
  std::vector<TensorSpec> specs;
  FlatSpace space;
  ScratchFolder folder;
  MemoryLog log;
  Workers workers;
  OffloadOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<Offloader> offloader;
};

inline void expect_same_as_reference(Rig& rig, const Reference& reference) {
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    EXPECT_EQ(rig.parameters(t), reference.parameters(t)) << rig.specs[t].name;
  }
}

// The first steps of the rig, beside those of plain vectors.
inline void expect_to_train(Rig& rig, uint64_t steps) {
  const OffloadOptions& options = rig.options;
  Reference reference(rig.specs, options.accumulation_steps, options.accumulation_type);
  for (uint64_t step = 1; step <= steps; ++step) {
    EXPECT_TRUE(rig.step(step, options.accumulation_steps).applied);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

}  // namespace terrace
