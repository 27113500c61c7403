// What really crosses the link to the device in the steps of models, beside the least that can: the exact
// optimum of sim for the very schedule that the step recorded, gradients being where they are.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/sim/lower_bound.h>

#include "support/offloaders.h"

namespace terrace::device_traffic_test {
namespace {

constexpr uint32_t kPrefetchUses = 16;

struct Variant {
  const char* name;
  ModelFamily family;
  bool tied;
  uint32_t accumulation;
  const char* frozen;  // a JSON list
  bool late_head_gradient;
  bool ahead_is_free;  // fetching ahead moves no more than on demand
};

constexpr Variant kVariants[] = {
    {"gpt2", ModelFamily::gpt2, false, 1, "", false, true},
    {"llama", ModelFamily::llama, false, 1, "", false, false},
    {"tied", ModelFamily::gpt2, true, 1, "", false, false},
    {"tied, late head", ModelFamily::gpt2, true, 1, "", true, false},
    {"accumulation 4", ModelFamily::gpt2, false, 4, "", false, true},
    {"accumulation 4, tied", ModelFamily::gpt2, true, 4, "", false, false},
    {"frozen parts", ModelFamily::gpt2, false, 1, R"(["transformer.h.0.*", "transformer.h.2.*"])", false,
     false},
    {"frozen but one", ModelFamily::llama, false, 2, R"(["*embed*", "*layers.[0-2].*", "lm_head*"])", false,
     false},
};

// The uses of a step without their arithmetic.
class Replayed {
 public:
  Replayed(const Variant& variant, uint32_t prefetch_uses, uint64_t spare_slots, PolicyKind policy)
      : accumulation_(variant.accumulation), workers_(1) {
    std::vector<ConfigOverride> overrides = {
        {"bf16.enabled", "true", "test"},
        {"gradient_accumulation_steps", std::to_string(variant.accumulation), "test"}};
    if (*variant.frozen != 0) overrides.push_back({"terrace.frozen", variant.frozen, "test"});
    const TrainConfig config = default_train_config(overrides);
    ModelConfig shape;
    shape.family = variant.family;
    shape.layers = 4;
    shape.heads = 4;
    shape.width = 64;
    shape.context = 32;
    shape.vocabulary = 512;
    shape.tied_embeddings = variant.tied;
    ModelOptions model_choice = model_options(config);
    model_choice.table_part_elements = 8192;
    model_choice.late_head_gradient = variant.late_head_gradient;
    const std::unique_ptr<Model> model = make_model(completed(shape), model_choice);
    trace_ = run_dry(*model, config, workers_).trace;
    space_ = std::make_unique<FlatSpace>(model->tensors(), kTileElements);
    OffloadOptions options;
    options.parameters = options.states = Placement::cpu;
    options.micro_batches = variant.accumulation;
    options.policy = policy;
    options.prefetch_uses = prefetch_uses;
    const MemoryPlan roomy = testing::plan_roomy(options, *space_, trace_);
    options.device_budget_bytes = roomy.device_minimum_bytes + spare_slots * roomy.slot_bytes;
    device_ = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes});
    offloader_ = std::make_unique<Offloader>(*space_, options, trace_, *device_, workers_, log_);
    offloader_->state().initialise(
        [](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 0.5f); });
  }

  void step() {
    const std::vector<OptimizerSettings> groups(2);
    offloader_->begin_step();
    for (uint32_t m = 0; m < accumulation_; ++m) {
      const std::string prefix = micro_batch_prefix(m);
      for (const TensorUse& use : trace_) {
        if (!use.operation.starts_with(prefix)) continue;
        const Lease lease(*offloader_, use.operation, use.tensors, use.kind);
      }
      offloader_->end_micro_batch();
    }
    offloader_->update({groups, ++steps_, 0});
  }

  // Of a step, when steps have come to resemble each other.
  OffloadCounters moved_in_a_step() {
    for (int i = 0; i < 2; ++i) step();
    const OffloadCounters before = offloader_->report().counters();
    step();
    return offloader_->report().counters() - before;
  }

  // The same step to the simulation: what an update changes is changed in host memory.
  double least_fetches_per_step() const {
    SimSchedule schedule{"recorded", {}, {}};
    SimUse update{"update", 1, {}, {}, {}, 0, {}};
    for (uint32_t c = 0; c < space_->chunk_count(); ++c) {
      schedule.items.push_back({std::to_string(c), 1, SimRole::param, 1});
      if (space_->section_of(ChunkId{c}).trainable) update.changes.push_back(c);
    }
    for (const ScheduledUse& use : offloader_->report().schedule().uses()) {
      SimUse same{use.operation, 0, {}, {}, {}, 0, {use.occupied_slots}};
      for (const ChunkId chunk : use.chunks) same.reads.push_back(index_of(chunk));
      schedule.uses.push_back(std::move(same));
    }
    schedule.uses.push_back(std::move(update));
    const SimMachine machine = {
        {{"device", offloader_->plan().device_slots}, {"host", kUnboundedBytes}}, {{1e9, 1e9, 0}}, 0};
    const LowerBound bound = lower_bound(schedule, machine, 0);
    EXPECT_EQ(bound.kind, BoundKind::exact);
    return bound.bytes_per_step;
  }

  Offloader& offloader() { return *offloader_; }
  uint32_t chunks() const { return space_->chunk_count(); }

 private:
  uint32_t accumulation_;
  MemoryLog log_;
  Workers workers_;
  std::vector<TensorUse> trace_;
  std::unique_ptr<FlatSpace> space_;
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
  uint64_t steps_ = 0;
};

// On demand it is the optimum to the chunk. One use ahead the chunks of two uses are there together, which
// may cost a few fetches where the schedule turns around within less than the device holds.
TEST(DeviceTraffic, OfOptIsTheExactOptimum) {
  std::printf("chunks to the device per step\n%-20s %6s %6s %8s %8s %8s %8s\n", "model", "chunks", "slots",
              "least", "demand", "ahead", "late");
  for (const Variant& variant : kVariants) {
    for (const uint64_t spare : {0, 2, 7, 20, 60}) {
      SCOPED_TRACE(std::string(variant.name) + " with " + std::to_string(spare) + " slots to spare");
      Replayed on_demand(variant, 0, spare, PolicyKind::opt),
          deep(variant, kPrefetchUses, spare, PolicyKind::opt);
      const OffloadCounters demand = on_demand.moved_in_a_step(), ahead = deep.moved_in_a_step();
      const double least = on_demand.least_fetches_per_step();
      std::printf("%-20s %6u %6u %8.2f %8d %8d %8d\n", variant.name, on_demand.chunks(),
                  on_demand.offloader().plan().device_slots, least, static_cast<int>(demand.fetch_count),
                  static_cast<int>(ahead.fetch_count), static_cast<int>(ahead.demand_fetch_count));
      EXPECT_EQ(static_cast<double>(demand.fetch_count), least);
      // Where something stays from step to step, the first one of a row begins with what it likes best.
      const uint64_t least_bytes = on_demand.offloader().report().traffic_bound().h2d_bytes;
      EXPECT_GE(demand.h2d_bytes, least_bytes);
      EXPECT_LE(static_cast<double>(demand.h2d_bytes),
                (*variant.frozen == 0 ? 1 : 1.05) * static_cast<double>(least_bytes));
      EXPECT_LE(static_cast<double>(ahead.fetch_count), (variant.ahead_is_free ? 1 : 1.03) * least);
      if (spare >= 7) {
        EXPECT_EQ(ahead.demand_fetch_count, 0u) << "there is room for two uses";
      }
    }
  }
}

}  // namespace
}  // namespace terrace::device_traffic_test
