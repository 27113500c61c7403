// The state of a Trainer beyond its steps: commits, checkpoints, exports, and what it goes on from.
#include <fmt/format.h>

#include <random>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/run_settings.h>
#include <terrace/runtime/model/weights/architecture.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/load_steps.h>
#include <terrace/runtime/train/internal/trainer_parts.h>

namespace terrace {
namespace {

// The names in CheckpointInfo::position; docs/checkpoint_format.md says what they hold.
constexpr const char* kDataFingerprint = "data_fingerprint";
constexpr const char* kTrainTokens = "train_tokens";
constexpr const char* kContext = "context";
constexpr const char* kConsumedSamples = "consumed_samples";

// Samples are numbered by the seed and cut by what is compared here; then the count of those consumed says
// where to go on, however they are cut into micro-batches.
void require_same_data(const std::filesystem::path& folder, const CheckpointInfo& saved,
                       const CheckpointInfo& mine) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(
        ErrorKind::config,
        {"cannot resume: the data or the seed differ from those of the checkpoint", folder.string(), reason,
         "give the same TokenOptions::paths, TrainingDataOptions::validation_fraction, "
         "TrainingDataOptions::context and TrainingDataOptions::seed, or start anew"});
  };
  if (saved.seed != mine.seed) refuse(fmt::format("saved with seed {}, now {}", saved.seed, mine.seed));
  const auto value = [&](const char* name) {
    const auto found = saved.position.find(name);
    if (found == saved.position.end()) refuse(fmt::format("it does not say its \"{}\"", name));
    return found->second;
  };
  if (value(kContext) != mine.position.at(kContext)) {
    refuse(
        fmt::format("saved with samples of {} tokens, now {}", value(kContext), mine.position.at(kContext)));
  }
  if (value(kDataFingerprint) != mine.position.at(kDataFingerprint)) refuse("the files are other ones");
  if (value(kTrainTokens) != mine.position.at(kTrainTokens)) {
    refuse(fmt::format("saved with {} tokens to train on, now {}: another part is held out",
                       value(kTrainTokens), mine.position.at(kTrainTokens)));
  }
  static_cast<void>(value(kConsumedSamples));
}

// As the configuration has it, with its quotes. Checkpoints of before there were others do not say it.
std::string optimizer_of(const CheckpointInfo& info) {
  const auto found = info.settings.find("optimizer.type");
  return found == info.settings.end() ? "\"AdamW\"" : found->second;
}

void require_same_optimizer(const std::filesystem::path& folder, const CheckpointInfo& saved,
                            const CheckpointInfo& mine) {
  const std::string before = optimizer_of(saved);
  const std::string now = optimizer_of(mine);
  const auto is_adam = [](const std::string& type) { return type == "\"Adam\"" || type == "\"AdamW\""; };
  if (before == now || (is_adam(before) && is_adam(now))) return;  // these two have the same moments
  throw Error(
      ErrorKind::config,
      {"cannot resume: the optimizer differs from that of the checkpoint", folder.string(),
       fmt::format("saved with optimizer.type {}, now {}: the moments of one mean nothing to the other",
                   before, now),
       "give the same optimizer, or begin anew from the weights (`terrace export`, then "
       "TrainerOptions::weights)"});
}

CheckpointInfo identity_of(const TrainerOptions& options, const Model& model, const FlatSpace& space,
                           const TrainingData& data) {
  CheckpointInfo info;
  info.model = model.description();
  info.architecture = architecture_text(model);
  info.tensor_hash = hash_of_tensors(space);
  info.type = model.options().type;
  info.seed = model.options().seed;
  info.position = {{kDataFingerprint, data.fingerprint()},
                   {kTrainTokens, data.train_token_count()},
                   {kContext, model.config().context}};
  info.settings = settings_of(options.config, options.steps);
  return info;
}

}  // namespace

void require_same_run(const CheckpointInfo& saved, const std::filesystem::path& where,
                      const CheckpointInfo& mine, const FlatSpace& space) {
  checkpoint::require_tensors(where, saved, mine.model, space);  // another model has other tokens, too
  require_same_data(where, saved, mine);
  require_same_optimizer(where, saved, mine);
}

uint64_t Trainer::Parts::draw_run_id() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

CheckpointInfo Trainer::Parts::identity() const {
  CheckpointInfo info = identity_of(options, *model, space, data);
  info.run_id = run_id;
  return info;
}

EpochInfo Trainer::Parts::info() const {
  if (!counts_are_of_weights) {
    throw Error(ErrorKind::cancelled, {"cannot keep", "the state in memory",
                                       "the last step did not end: the weights are of no step",
                                       "resume from the last commit or checkpoint"});
  }
  CheckpointInfo run = identity();
  run.step = completed;
  run.position[kConsumedSamples] = consumed_samples;
  if (scaler) run.loss_scaler = scaler->state();
  return {std::move(run), space.chunk_elements()};
}

// Before anything is opened.
std::optional<FoundEpoch> Trainer::Parts::epoch_to_take_up() const {
  if (setup.offload.tier_start != TierStart::resume) return std::nullopt;
  FoundEpoch found = require_epoch(options.config);
  require_same_run(found.info.run, found.manifest, identity(), space);
  return found;
}

// The offloader has the state already.
void Trainer::Parts::take_up_epoch() {
  if (offloader.commits().taken_up_info() != epoch_info_text(taken_up->info)) {
    throw Error(ErrorKind::io, {"cannot go on from the commit on nvme", taken_up->manifest.string(),
                                "another job changed it meanwhile", "start again when that job has ended"});
  }
  const CheckpointInfo& saved = taken_up->info.run;
  go_on_from(saved, taken_up->manifest.string());
  keeper.took_up(saved.step);
  log.info(fmt::format("resumed at step {} in place, from commit {} ({})", saved.step, taken_up->number,
                       taken_up->manifest.string()));
}

void Trainer::Parts::go_on_from(const CheckpointInfo& saved, const std::string& where) {
  for (const std::string& line : changed_settings(saved.settings, identity().settings)) log.info(line);
  if (saved.run_id != 0) run_id = saved.run_id;
  completed = saved.step;
  consumed_samples = saved.position.at(kConsumedSamples);
  if (scaler) scaler->restore(saved.loss_scaler, where);
}

void Trainer::require_resumable(const std::filesystem::path& folder, const TrainerOptions& options,
                                const TrainingSetup& setup, const TrainingData& data) {
  const FlatSpace space(setup.tensors, setup.plan.chunk_elements);
  const CheckpointInfo mine = identity_of(options, *setup.model, space, data);
  const CheckpointInfo saved = read_checkpoint_info(folder);
  require_same_data(folder, saved, mine);
  require_same_optimizer(folder, saved, mine);
  require_loadable_checkpoint(folder, mine.model, space, setup.plan.memory.record_layout);
}

void Trainer::resume(const std::filesystem::path& folder) {
  Parts& p = *parts_;
  const CheckpointInfo saved = read_checkpoint_info(folder);
  require_same_data(folder, saved, p.identity());
  require_same_optimizer(folder, saved, p.identity());
  load_checkpoint(folder, model_description(), p.space, p.offloader, p.log);
  p.go_on_from(saved, folder.string());
}

template <typename Action>
KeptState Trainer::Parts::keep(Action action) {
  const OffloadCounters before = offloader.counters();
  KeptState kept;
  {
    const TimeScope keeping(offloader.time(), TimeCause::commit);
    kept = action();
  }
  kept_moved = kept_moved - (before - offloader.counters());
  return kept;
}

void Trainer::Parts::finish_update_between_steps() {
  keep([&] {
    offloader.finish_update();
    return KeptState{};
  });
}

KeptState Trainer::look_after_state() {
  Parts& p = *parts_;
  return p.keep([&] { return p.keeper.look_after(p.completed, [&] { return p.info(); }); });
}

KeptState Trainer::begin_commit(bool retain) {
  Parts& p = *parts_;
  return p.keep([&] {
    return p.keeper.begin_commit(
        p.completed, [&] { return p.info(); }, retain);
  });
}

KeptState Trainer::finish_commit() {
  Parts& p = *parts_;
  return p.keep([&] { return p.keeper.finish_commit(); });
}

std::optional<uint64_t> Trainer::durable_step() const {
  return parts_->keeper.durable_step();
}

KeptState Trainer::begin_save(const CheckpointFolder& folder) {
  Parts& p = *parts_;
  return p.keep([&] { return p.keeper.begin_save(folder, p.completed, [&] { return p.info(); }); });
}

KeptState Trainer::finish_save() {
  Parts& p = *parts_;
  return p.keep([&] { return p.keeper.finish_save(); });
}

std::filesystem::path Trainer::save(const CheckpointFolder& folder) {
  Parts& p = *parts_;
  p.finish_update_between_steps();
  return save_checkpoint(folder, p.info().run, p.space, p.offloader, p.log);
}

uint64_t Trainer::run_id() const {
  return parts_->run_id;
}

ExportReport Trainer::export_weights(const std::filesystem::path& folder, const ExportOptions& options) {
  Parts& p = *parts_;
  p.finish_update_between_steps();
  return export_model(
      folder, *p.model, options,
      [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
        p.offloader.state().export_values(wanted, sink);
      },
      p.log);
}

}  // namespace terrace
