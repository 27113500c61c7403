// A toy training whose states are epochs on nvme: made anew or taken up from what is in its folders,
// committed with the number of the step as the words of the epoch.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/memory/simulated_device.h>

#include "offload/toy_training.h"

namespace terrace::laws {

struct DurableToyOptions {
  std::vector<std::filesystem::path> paths = {};  // existing folders
  TierStart start = TierStart::fresh;
  Placement parameters = Placement::nvme;
  bool with_frozen = true;
  uint64_t cached_records = 0;  // kept in host memory
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate = nullptr;
  double processor_share = 1;
};

class DurableToy {
 public:
  explicit DurableToy(const DurableToyOptions& toy)
      : specs(toy::tensors(DataType::bf16, toy.with_frozen)), space(specs, kTileElements), workers_(1) {
    const std::vector<TensorUse> uses = toy::trace(specs, 1);
    OffloadOptions options;
    options.parameters = toy.parameters;
    options.states = Placement::nvme;
    for (const std::filesystem::path& path : toy.paths) options.state_paths.push_back({path});
    if (toy.parameters == Placement::nvme) options.parameter_paths = options.state_paths;
    options.durable = true;
    options.processor_share = toy.processor_share;
    options.tier_start = toy.start;
    options.lock_host_memory = false;
    options.io.kind = io::EngineKind::threads;
    options.decorate_engine = toy.decorate;
    options.device_budget_bytes = options.host_budget_bytes = kGiB;
    const MemoryPlan roomy = plan_memory(space, uses, options);
    options.device_budget_bytes = roomy.device_minimum_bytes;
    options.host_budget_bytes = roomy.host_minimum_bytes;
    while (plan_memory(space, uses, options).host_record_slots < toy.cached_records)
      options.host_budget_bytes += RecordLayout{}.tile_bytes();
    device_ =
        std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes, false, 0, 0});
    offloader = std::make_unique<Offloader>(space, options, uses, *device_, workers_, log);
  }

  void initialise() {
    offloader->initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = toy::initial_value(index_of(tensor), first + e);
    });
  }
  void train(uint64_t step) {
    offloader->begin_step();
    toy::run_micro_batch(*offloader, specs, 0);
    offloader->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    offloader->update({groups, step, 1.0});
  }
  void begin_commit(uint64_t step) { offloader->begin_commit(std::to_string(step), false); }
  // Of the epoch that was taken up.
  uint64_t taken_up_step() const { return std::stoull(offloader->taken_up_info()); }

  // Everything a step depends on: records, and the parameters as operations see them, frozen ones too.
  std::vector<std::byte> state() {
    std::vector<std::byte> bytes;
    offloader->export_records(
        [&](std::span<const std::byte> tiles) { bytes.insert(bytes.end(), tiles.begin(), tiles.end()); });
    for (uint32_t t = 0; t < specs.size(); ++t) {
      std::vector<std::byte> values(specs[t].element_count() * bytes_of(specs[t].type));
      offloader->read_parameter(TensorId{t}, values);
      bytes.insert(bytes.end(), values.begin(), values.end());
    }
    return bytes;
  }

  std::vector<TensorSpec> specs;
  FlatSpace space;
  MemoryLog log;

 private:
  Workers workers_;
  std::unique_ptr<SimulatedDevice> device_;

 public:
  std::unique_ptr<Offloader> offloader;
};

// The state after each step of a training that nothing happens to; [0] is the one before the first.
inline std::vector<std::vector<std::byte>> states_by_step(uint64_t steps, DurableToyOptions options) {
  const toy::ScratchFolder folder;
  options.paths = {folder.path()};
  options.start = TierStart::fresh;
  options.decorate = nullptr;
  DurableToy toy(options);
  toy.initialise();
  std::vector<std::vector<std::byte>> states = {toy.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    toy.train(step);
    states.push_back(toy.state());
  }
  return states;
}

}  // namespace terrace::laws
