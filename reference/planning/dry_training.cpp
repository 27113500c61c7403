#include <terrace/reference/planning/dry_training.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/comm/operations/dry_communicator.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/config/loss_scaler.h>
#include <terrace/runtime/config/parameter_groups.h>
#include <terrace/runtime/planning/device_ledger.h>

namespace terrace {
namespace {

using Kind = RecordedEvent::Kind;

// Notes what an engine is asked for.
class RecordingEngine final : public io::EngineDecorator {
 public:
  RecordingEngine(std::unique_ptr<io::Engine> base, uint32_t number, StepRecord& record)
      : io::EngineDecorator(std::move(base)), number_(number), record_(record) {}
  void submit(std::span<const io::Request> requests) override {
    for (const io::Request& request : requests)
      record_.add({request.kind == io::OpKind::read ? Kind::read : Kind::write, number_, request.bytes});
    base().submit(requests);
  }

 private:
  const uint32_t number_;
  StepRecord& record_;
};

// Notes when uses begin, have their tensors and end.
class RecordingAccess final : public ParameterAccess {
 public:
  RecordingAccess(ParameterAccess& access, StepRecord& record, uint32_t& use)
      : access_(access), record_(record), use_(use) {}
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    record_.add({Kind::begin_use, use_});
    access_.begin_use(operation, tensors, kind);
    record_.add({Kind::ready, use_});
  }
  void end_use() override {
    record_.add({Kind::end_use, use_++});
    access_.end_use();
  }
  void select_micro_batch(uint32_t micro_batch) override { access_.select_micro_batch(micro_batch); }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  StepRecord& record_;
  uint32_t& use_;
};

// Notes what this rank would exchange with the others: one event for what takes one operation where all ranks
// are on one host, and several on several hosts.
class RecordingRanks final : public DryCommunicator {
 public:
  RecordingRanks(const OffloadOptions& options, StepRecord& record)
      : DryCommunicator(options.rank, std::vector<RankPlace>(options.ranks)),
        rounds_(rounds_of(options)),
        record_(record) {}
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override {
    const LaneCounters before = counters()[index_of(lane)];
    DryCommunicator::exchange_within(group, lane, to, from, after, done, note);
    const LaneCounters now = counters()[index_of(lane)];
    const uint64_t bytes = std::max(now.in_bytes - before.in_bytes, now.out_bytes - before.out_bytes);
    const bool is_gather = lane == Lane::gather || lane == Lane::gather_between_hosts;
    const bool is_between = lane == Lane::gather_between_hosts || lane == Lane::exchange_between_hosts;
    Moved& moved = is_gather ? gathered_ : exchanged_[note.chunk];
    moved.bytes += bytes;
    moved.between_bytes += is_between ? bytes : 0;
    ++moved.operations[is_between];
    const bool comes_between = !is_gather && rounds_.sums_on_hosts();
    const uint32_t inside = is_gather || comes_between ? rounds_.hosts : 1;
    const uint32_t between = comes_between ? rounds_.groups_per_host() : 0;
    if (moved.operations[0] < inside || moved.operations[1] < between) return;
    record_.add({is_gather ? Kind::gather : Kind::exchange, note.chunk, moved.bytes});
    if (moved.between_bytes > 0) record_.add({Kind::between, note.chunk, moved.between_bytes});
    moved = {};
  }

 private:
  struct Moved {
    uint64_t bytes = 0;
    uint64_t between_bytes = 0;
    std::array<uint32_t, 2> operations{};  // inside of the host, and between hosts
  };
  const StepRounds rounds_;
  StepRecord& record_;
  Moved gathered_;
  std::map<uint32_t, Moved> exchanged_;  // by chunk
};

std::unique_ptr<Communicator> recording_ranks(const OffloadOptions& options, StepRecord& record) {
  return options.ranks > 1 ? std::make_unique<RecordingRanks>(options, record) : nullptr;
}

OffloadOptions dry(OffloadOptions options, StepRecord& record, Communicator* ranks, const Clock& clock) {
  options.dry = true;
  options.hooks.communicator = ranks;
  options.tier_start = TierStart::fresh;
  options.hooks.decorate_engine = [&record, made = uint32_t{0}](std::unique_ptr<io::Engine> engine) mutable {
    return std::make_unique<RecordingEngine>(std::move(engine), made++, record);
  };
  options.hooks.file_events = nullptr;
  options.hooks.step_events = nullptr;
  options.hooks.clock = &clock;
  return options;
}

// The same purposes together, in the order in which they appear first.
std::vector<TierUse> merged(const std::vector<TierUse>& uses) {
  std::vector<TierUse> sums;
  for (const TierUse& use : uses) {
    const auto known = std::ranges::find(sums, use.purpose, &TierUse::purpose);
    if (known == sums.end()) {
      sums.push_back(use);
    } else {
      known->bytes += use.bytes;
    }
  }
  return sums;
}

PredictedTier tier_of(const char* name, uint64_t budget_bytes, const std::vector<TierUse>& uses) {
  PredictedTier tier{name, budget_bytes, 0, {}};
  for (const TierUse& use : merged(uses)) {
    if (use.bytes == 0) continue;
    tier.peak_bytes += use.bytes;
    tier.uses.push_back(use);
  }
  return tier;
}

}  // namespace

DryTraining::DryTraining(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode,
                         Workers& workers)
    : config_(config),
      setup_(setup),
      ranks_(recording_ranks(setup.offload, record_)),
      ops_(make_dry_ops(setup.compute, workers)),
      space_(setup.tensors, setup.plan.chunk_elements),
      device_(setup.offload.device_budget_bytes, &record_),
      offloader_(space_, dry(setup.offload, record_, ranks_.get(), clock_), setup.dry.trace, device_, workers,
                 log_),
      arena_(offloader_.work_memory()) {
  GroupSettings settings(config, 1);
  const std::span<const OptimizerSettings> groups = settings.at(0);
  groups_.assign(groups.begin(), groups.end());
  if (config.precision == DataType::fp16) loss_scale_ = LossScaler(config.fp16).scale();
  offloader_.state().initialise([](TensorId, uint64_t, std::span<float>) {});
  offloader_.set_update_mode(mode);
}

void DryTraining::run_micro_batch(uint32_t micro_batch) {
  RecordingAccess access(offloader_, record_, uses_);
  setup_.model->train_micro_batch(*ops_, access, arena_, dry_micro_batch(config_, setup_.model->config()),
                                  1.0f, micro_batch_prefix(micro_batch), offloader_.activations());
  record_.add({Kind::end_micro_batch, micro_batch});
  offloader_.end_micro_batch();
}

void DryTraining::run_together() {
  const std::vector<std::string> prefixes = micro_batch_prefixes(config_.batch);
  std::vector<MicroBatchRun> runs;
  for (const std::string& prefix : prefixes)
    runs.push_back({dry_micro_batch(config_, setup_.model->config()), prefix});
  RecordingAccess access(offloader_, record_, uses_);
  setup_.model->train_layer_major(*ops_, access, arena_, runs, 1.0f, offloader_.activations());
  record_.add({Kind::end_micro_batch, 0});
  offloader_.end_micro_batch();
}

void DryTraining::run_stage(const UpdateSettings* announced) {
  const std::vector<std::string> prefixes = micro_batch_prefixes(config_.batch);
  std::vector<MicroBatchRun> runs;
  for (const std::string& prefix : prefixes)
    runs.push_back({dry_micro_batch(config_, setup_.model->config()), prefix});
  RecordingAccess access(offloader_, record_, uses_);
  const auto at = [&](StageMoment moment, uint32_t micro_batch) {
    if (moment == StageMoment::forward_is_over) record_.add({Kind::end_forward, micro_batch});
    if (moment == StageMoment::backward_begins) {
      if (announced != nullptr && micro_batch + 1 == runs.size()) offloader_.announce_update(*announced);
      record_.add({Kind::begin_backward, micro_batch});
    }
    if (moment != StageMoment::backward_is_over) return;
    record_.add({Kind::end_micro_batch, micro_batch});
    offloader_.end_micro_batch();
  };
  setup_.model->train_stage(*ops_, access, arena_, runs, at, offloader_.activations());
}

OffloadCounters DryTraining::step() {
  const OffloadCounters before = offloader_.report().counters();
  const UpdateSettings settings = {groups_, ++steps_, config_.gradient_clipping, loss_scale_};
  const uint32_t accumulation = config_.batch.rounds().count();
  uses_ = 0;
  offloader_.begin_step();
  const bool announces = may_announce_update(config_, settings);
  if (setup_.model->config().part) {
    run_stage(announces ? &settings : nullptr);
  } else if (config_.batch.layer_major) {
    if (announces) offloader_.announce_update(settings);
    run_together();
  } else {
    for (uint32_t m = 0; m < accumulation; ++m) {
      if (m + 1 == accumulation && announces) offloader_.announce_update(settings);
      run_micro_batch(m);
    }
  }
  record_.add({Kind::begin_update});
  offloader_.update(settings);
  record_.add({Kind::end_step});
  return offloader_.report().counters() - before;
}

std::vector<ChunkId> DryTraining::update_order() {
  std::vector<ChunkId> order;
  for (const ChunkTimes& chunk : offloader_.report().last_update_times()) order.push_back(chunk.chunk);
  return order;
}

OffloadCounters DryTraining::commit() {
  offloader_.finish_update();
  const OffloadCounters before = offloader_.report().counters();
  offloader_.commits().begin("");
  offloader_.commits().finish();
  return offloader_.report().counters() - before;
}

std::vector<PredictedTier> DryTraining::tiers() const {
  const MemoryPlan& plan = offloader_.plan();
  std::vector<PredictedTier> tiers = {tier_of("device", setup_.plan.device.bytes, device_ledger(plan)),
                                      tier_of("host", setup_.plan.host.bytes, offloader_.budget().ledger())};
  const uint64_t taken = offloader_.report().tier_file_bytes();
  if (taken == 0) return tiers;
  tiers.push_back(tier_of("nvme", 0,
                          {{"parameters", plan.parameter_file_bytes},
                           {"optimizer states", plan.record_file_bytes},
                           {"gradients", plan.gradient_file_bytes},
                           {"activation checkpoints", plan.activation_file_bytes},
                           {"head-room of several paths", taken - std::min(taken, plan.file_bytes())}}));
  return tiers;
}

bool moves_the_same(const OffloadCounters& one, const OffloadCounters& other) {
  const auto is_equal = [&](const CounterEntry& link) { return one.*link.value == other.*link.value; };
  return std::ranges::all_of(kLinks, is_equal) && one.fetch_count == other.fetch_count &&
         one.demand_fetch_count == other.demand_fetch_count && one.eviction_count == other.eviction_count;
}

}  // namespace terrace
