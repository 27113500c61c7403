// An Offloader that commits, on folders that outlive it, and what any state of its training must be.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/base/log.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

#include "offload/toy_training.h"

namespace terrace {

struct EpochCase {
  Placement parameters = Placement::cpu;
  bool with_frozen = false;
  DataType type = DataType::bf16;
  uint32_t accumulation = 1;
  uint64_t chunk_elements = kTileElements;
  uint32_t cached_quarters = 2;  // of what a larger host budget would keep
  io::EngineKind engine = io::EngineKind::threads;
  size_t threads = 2;
  bool durable = true;
  uint32_t retained = 0;
  TierStart start = TierStart::fresh;
  bool discard = false;
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate = nullptr;
  io::FileEvents* events = nullptr;
  std::optional<DriveTurnOptions> drive_turns = std::nullopt;
  RecordLayout layout = {};
  OptimizerKind kind = OptimizerKind::adam;
  Placement states = Placement::nvme;
  UpdateMode mode = UpdateMode::after_backward;
  double clip_norm = 0;
  std::optional<uint32_t> cached_parameters = std::nullopt;  // chunks of them in host memory, and no records
  bool holds_gradients = false;                              // whatever else there is room for
  DataType accumulation_type = DataType::fp32;
  // Instead of all that: of the plan without limits.
  std::function<uint64_t(const MemoryPlan&)> host_budget = nullptr;
  StepEvents* step_events = nullptr;
  double processor_share = 1;
};

inline constexpr RecordLayout kCompact = {MasterForm::remainder};

inline OffloadOptions epoch_options(const EpochCase& c, const FlatSpace& space,
                                    const std::vector<TensorUse>& uses,
                                    const std::vector<std::filesystem::path>& folders) {
  OffloadOptions options;
  options.parameters = c.parameters;
  options.states = c.states;
  for (const std::filesystem::path& folder : folders) options.state_paths.push_back({folder, 0});
  options.parameter_paths = options.state_paths;
  options.accumulation_steps = c.accumulation;
  options.accumulation_type = c.accumulation_type;
  options.io.kind = c.engine;
  options.lock_host_memory = false;
  options.durable = c.durable;
  options.retained_epochs = c.retained;
  options.tier_start = c.start;
  options.discard_epochs = c.discard;
  options.decorate_engine = c.decorate;
  options.file_events = c.events;
  options.drive_turns = c.drive_turns;
  options.record_layout = c.layout;
  options.step_events = c.step_events;
  options.processor_share = c.processor_share;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  const MemoryPlan roomy = plan_memory(space, uses, options);
  options.device_budget_bytes = roomy.device_minimum_bytes;
  options.host_budget_bytes =
      roomy.host_minimum_bytes + (roomy.host_bytes - roomy.host_minimum_bytes) * c.cached_quarters / 4;
  if (c.holds_gradients)
    options.host_budget_bytes = std::max(options.host_budget_bytes, roomy.host_holding_bytes);
  if (c.host_budget) options.host_budget_bytes = c.host_budget(roomy);
  if (!c.cached_parameters) return options;
  options.host_budget_bytes = roomy.host_minimum_bytes;
  while (plan_memory(space, uses, options).host_param_slots < *c.cached_parameters)
    options.host_budget_bytes += roomy.slot_bytes;
  return options;
}

class EpochRig {
 public:
  EpochRig(const EpochCase& c, const std::vector<std::filesystem::path>& folders)
      : accumulation(c.accumulation),
        kind(c.kind),
        clip_norm(c.clip_norm),
        specs(toy::tensors(c.type, c.with_frozen)),
        space(specs, c.chunk_elements),
        workers(c.threads) {
    const std::vector<TensorUse> uses = toy::trace(specs, c.accumulation);
    const OffloadOptions options = epoch_options(c, space, uses, folders);
    device = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes});
    offloader = std::make_unique<Offloader>(space, options, uses, *device, workers, log);
    offloader->set_update_mode(c.mode);
    if (c.start == TierStart::resume) return;
    offloader->initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = toy::initial_value(index_of(tensor), first + e);
    });
  }
  EpochRig(const EpochCase& c, const std::filesystem::path& folder)
      : EpochRig(c, std::vector<std::filesystem::path>{folder}) {}

  UpdateResult step(uint64_t number) {
    std::vector<OptimizerSettings> groups = toy::groups();
    for (OptimizerSettings& group : groups) group.kind = kind;
    const UpdateSettings settings = {groups, number, clip_norm, 1};
    offloader->begin_step();
    offloader->announce_update(settings);
    for (uint32_t m = 0; m < accumulation; ++m) {
      toy::run_micro_batch(*offloader, specs, m);
      offloader->end_micro_batch();
    }
    return offloader->update(settings);
  }

  // As a checkpoint holds them.
  std::vector<std::byte> records() {
    std::vector<std::byte> all;
    offloader->export_records(
        [&](std::span<const std::byte> tiles) { all.insert(all.end(), tiles.begin(), tiles.end()); });
    return all;
  }

  // Records, then all parameters.
  std::vector<std::byte> state() {
    std::vector<std::byte> all = records();
    for (uint32_t t = 0; t < specs.size(); ++t) {
      std::vector<std::byte> bytes(specs[t].element_count() * bytes_of(specs[t].type));
      offloader->read_parameter(TensorId{t}, bytes);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  // What lives in host memory of the records, in bytes of the tier.
  uint64_t cached_record_bytes() const {
    const MemoryPlan& plan = offloader->plan();
    uint64_t bytes = 0;
    uint32_t t = 0;
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      if (!space.section_of(ChunkId{c}).trainable) continue;
      const uint64_t before = uint64_t{t} * plan.host_record_slots / plan.record_chunks;
      ++t;
      if (uint64_t{t} * plan.host_record_slots / plan.record_chunks != before)
        bytes += space.chunk(ChunkId{c}).tile_count() * plan.record_layout.tile_bytes();
    }
    return bytes;
  }

  uint64_t trainable_elements() const {
    uint64_t elements = 0;
    for (const Section& section : space.sections()) elements += section.trainable ? section.elements : 0;
    return elements;
  }

  uint32_t accumulation;
  OptimizerKind kind;
  double clip_norm;
  std::vector<TensorSpec> specs;
  FlatSpace space;
  MemoryLog log;
  Workers workers;
  std::unique_ptr<SimulatedDevice> device;
  std::unique_ptr<Offloader> offloader;
};

// The state after every step, from 0 on, of the same training in host memory.
inline std::vector<std::vector<std::byte>> states_without_epochs(EpochCase c, uint64_t steps) {
  const toy::ScratchFolder folder;
  c.durable = false;
  c.start = TierStart::fresh;
  c.decorate = nullptr;
  c.events = nullptr;
  c.engine = io::EngineKind::threads;
  EpochRig rig(c, folder.path());
  std::vector<std::vector<std::byte>> states = {rig.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    rig.step(step);
    states.push_back(rig.state());
  }
  return states;
}

inline std::string step_info(uint64_t step) {
  return "step " + std::to_string(step);
}
inline uint64_t step_of(const std::string& info) {
  return std::stoull(info.substr(std::string("step ").size()));
}

// Holds every request until somebody waits for one, and then until `gate` returns.
class GateEngine final : public io::EngineDecorator {
 public:
  GateEngine(std::unique_ptr<io::Engine> base, std::function<void()> gate)
      : io::EngineDecorator(std::move(base)), gate_(std::move(gate)) {}
  void submit(std::span<const io::Request> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }
  size_t poll() override { return 0; }
  size_t wait(size_t min_count) override {
    gate_();
    const std::vector<io::Request> ready = std::move(held_);
    held_.clear();
    base().submit(ready);
    return base().wait(min_count);
  }
  uint64_t in_flight() const override { return held_.size() + base().in_flight(); }

 private:
  std::function<void()> gate_;
  std::vector<io::Request> held_;
};

// Opens when the step thread waits for a commit, or when it is told to; and in case of a mistake after a long
// while, so that the test ends.
class CommitGate {
 public:
  void operator()() {
    for (int i = 0; i < 3000 && !open_; ++i) {
      const Offloader* offloader = offloader_;
      if (offloader != nullptr) {
        const std::optional<uint64_t> wait = offloader->watch().current();
        const std::string text = wait ? offloader->watch().describe(*wait).value_or("") : "";
        if (text.find("commit") != std::string::npos) {
          ++waits_seen_;
          return;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void watch(const Offloader* offloader) { offloader_ = offloader; }
  void open(bool open) { open_ = open; }
  uint32_t waits_seen() const { return waits_seen_; }

 private:
  std::atomic<const Offloader*> offloader_{nullptr};
  std::atomic<bool> open_{true};
  std::atomic<uint32_t> waits_seen_{0};
};

// Trains four steps, of which the last two meet the commit of the second one while the gate holds it back.
inline void train_past_commit(EpochRig& rig, CommitGate& gate) {
  rig.step(1);
  rig.offloader->begin_commit(step_info(1));
  rig.offloader->finish_commit();
  gate.watch(rig.offloader.get());
  gate.open(false);
  rig.step(2);
  rig.offloader->begin_commit(step_info(2));
  rig.step(3);
  rig.step(4);
  gate.open(true);
  EXPECT_EQ(rig.offloader->finish_commit(), 2u);
}

// What `c` has left in the folder is taken up as of that step.
inline void expect_epoch(EpochCase c, const std::filesystem::path& folder, uint64_t step,
                         const std::vector<std::vector<std::byte>>& states) {
  c.start = TierStart::resume;
  c.decorate = nullptr;
  EpochRig resumed(c, folder);
  EXPECT_EQ(resumed.offloader->taken_up_info(), step_info(step));
  EXPECT_EQ(resumed.state(), states[step]);
}

// Decorates the engine of the commits alone.
inline auto decorate_commits(const EpochCase& c,
                             std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> wrap) {
  const uint32_t commits = c.parameters == Placement::nvme ? 2 : 1;
  return [commits, made = std::make_shared<uint32_t>(0),
          wrap = std::move(wrap)](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return (*made)++ == commits ? wrap(std::move(engine)) : std::move(engine);
  };
}

}  // namespace terrace
