#include <terrace/reference/planning/training_schedule.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/config/parameter_groups.h>

namespace terrace {
namespace {

constexpr uint32_t kNoItem = UINT32_MAX;
constexpr uint32_t kHost = 1, kNvme = 2;
// Per element that an operation reads and token: a multiplication and an addition, in backward for two
// products.
constexpr double kForwardOperations = 2, kBackwardOperations = 4;

uint32_t home_of(Placement placement) {
  return placement == Placement::cpu ? kHost : kNvme;
}

// As the run places them.
std::vector<TensorSpec> placed_tensors(const Model& model, const TrainConfig& config) {
  std::vector<TensorSpec> tensors = model.tensors();
  resolve_parameter_groups(config, tensors);
  return tensors;
}

class Builder {
 public:
  Builder(const Model& model, const TrainConfig& config, const DryRun& dry,
          const TrainingScheduleOptions& options)
      : config_(config),
        dry_(dry),
        options_(options),
        space_(placed_tensors(model, config), options.chunk_elements),
        tokens_(double(config.batch.micro_batch_size) * model.config().context),
        elements_(elements_of_uses(model, dry.trace)),
        param_(space_.chunk_count(), kNoItem),
        gradient_(space_.chunk_count(), kNoItem),
        record_(space_.chunk_count(), kNoItem),
        is_made_(space_.chunk_count(), false) {}

  SimSchedule build() {
    add_items();
    for (const TensorUse& use : dry_.trace) add_use(use);
    for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
      if (gradient_[c] != kNoItem) add_update(c);
    }
    return std::move(schedule_);
  }

 private:
  uint32_t add_item(const char* what, uint32_t chunk, uint64_t bytes, SimRole role, uint32_t home) {
    schedule_.items.push_back({fmt::format("{} {}", what, chunk), bytes, role, home});
    return static_cast<uint32_t>(schedule_.items.size() - 1);
  }

  void add_items() {
    const uint64_t tile_bytes = record_layout(config_).tile_bytes();
    for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
      const Section& section = space_.section_of(ChunkId{c});
      const ChunkInfo& chunk = space_.chunk(ChunkId{c});
      const uint64_t bytes = chunk.elements * bytes_of(section.type);
      param_[c] = add_item("param", c, bytes, SimRole::param, home_of(config_.placement.parameters));
      if (!section.trainable) continue;
      gradient_[c] = add_item("grad", c, bytes, SimRole::grad, kHost);
      record_[c] = add_item("state", c, chunk.tile_count() * tile_bytes, SimRole::state,
                            home_of(config_.placement.states));
    }
  }

  std::vector<uint64_t> occupied() const {
    return {dry_.work_bytes, dry_.activation_entries * dry_.activation_entry_bytes};
  }

  void add_use(const TensorUse& traced) {
    SimUse use;
    use.operation = traced.operation;
    use.occupied_bytes = occupied();
    collect_chunks(space_, traced.tensors, chunks_);
    for (const ChunkId id : chunks_) {
      const uint32_t c = index_of(id);
      use.reads.push_back(param_[c]);
      if (traced.kind != UseKind::backward || gradient_[c] == kNoItem) continue;
      (is_made_[c] ? use.changes : use.makes).push_back(gradient_[c]);
      is_made_[c] = true;
    }
    const auto elements = static_cast<double>(elements_[schedule_.uses.size()]);
    const double each = traced.kind == UseKind::backward ? kBackwardOperations : kForwardOperations;
    use.compute_ns = static_cast<uint64_t>(1e9 * each * elements * tokens_ / options_.operations_per_second);
    if (options_.use_ns.size() == dry_.trace.size()) use.compute_ns = options_.use_ns[schedule_.uses.size()];
    schedule_.uses.push_back(std::move(use));
  }

  // A gradient that no use made is not there to be read.
  void add_update(uint32_t c) {
    SimUse use;
    use.operation = fmt::format("update/{}", c);
    use.tier = kHost;
    use.occupied_bytes = occupied();
    if (is_made_[c]) use.reads.push_back(gradient_[c]);
    use.changes = {param_[c], record_[c]};
    const uint64_t bytes = schedule_.items[gradient_[c]].bytes + 2 * schedule_.items[param_[c]].bytes +
                           2 * schedule_.items[record_[c]].bytes;
    use.compute_ns = static_cast<uint64_t>(1e9 * static_cast<double>(bytes) / options_.host_bytes_per_second);
    schedule_.uses.push_back(std::move(use));
  }

  const TrainConfig& config_;
  const DryRun& dry_;
  const TrainingScheduleOptions& options_;
  const FlatSpace space_;
  const double tokens_;
  const std::vector<uint64_t> elements_;             // of uses
  std::vector<uint32_t> param_, gradient_, record_;  // items, by chunk
  std::vector<bool> is_made_;                        // gradients of the step so far
  std::vector<ChunkId> chunks_;
  SimSchedule schedule_;
};

}  // namespace

std::vector<uint64_t> elements_of_uses(const Model& model, std::span<const TensorUse> uses) {
  const std::vector<uint64_t> counts = model.element_counts();
  std::vector<uint64_t> elements;
  for (const TensorUse& use : uses) {
    elements.push_back(0);
    for (const TensorId tensor : use.tensors) elements.back() += counts[index_of(tensor)];
  }
  return elements;
}

SimSchedule training_schedule(const Model& model, const TrainConfig& config, const DryRun& dry,
                              const TrainingScheduleOptions& options) {
  SimSchedule schedule = Builder(model, config, dry, options).build();
  schedule.name = fmt::format("{} layers x {}, {} micro-batch(es)", model.config().layers,
                              model.config().width, config.batch.rounds().count());
  return schedule;
}

}  // namespace terrace
