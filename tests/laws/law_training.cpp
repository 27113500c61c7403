#include "laws/law_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include <terrace/offload/commits/pinned_commit.h>
#include <terrace/runtime/checkpoint/internal/set_streams.h>

#include "laws/law_options.h"
#include "support/offloaders.h"

namespace terrace::laws {
// What is given up by the training that begins over it.
static void leave_commit(Combination c, const LawSurroundings& surroundings) {
  set_level(c, kBegins, "anew");
  LawTraining before(c, {.folder = surroundings.folder, .ranks = surroundings.ranks});
  if (!before.offloader().commits().are_kept()) return;
  before.choose_mode();
  before.step();
  before.begin_commit();
  before.offloader().commits().finish();
}

struct LawTraining::Save {
  std::unique_ptr<PinnedCommit> commit;  // of one rank
  std::vector<ShardPaths> shards;        // of several: all ranks' paths, and the number of their commit
  uint64_t number = 0;
  uint64_t step = 0;
  std::vector<std::byte> records;
  std::exception_ptr failure;
  std::thread thread;

  void copy() {
    try {
      shards.empty() ? copy_own() : copy_of_all();
    } catch (...) {
      failure = std::current_exception();
    }
    commit.reset();  // which the next commit may wait for
  }

 private:
  void copy_own() {
    step = std::stoull(commit->info());
    const uint64_t tile_bytes = commit->record_layout().tile_bytes();
    records.resize(commit->record_tile_count() * tile_bytes);
    const uint64_t run = commit->block_tiles();
    for (uint64_t first = 0; first < commit->record_tile_count(); first += run) {
      const uint64_t tiles = std::min(run, commit->record_tile_count() - first);
      commit->read_records(first, std::span(records).subspan(first * tile_bytes, tiles * tile_bytes));
    }
  }

  void copy_of_all() {
    const SetStreams streams(shards, number, "cannot copy the commit of all ranks");
    step = std::stoull(streams.info());
    SetStreams::States states = streams.states();
    records.resize(states.bytes());
    states.read(records);
    SetStreams::Store frozen = streams.frozen();
    std::vector<std::byte> values(frozen.bytes());
    frozen.read(values);  // which verifies them
  }
};

// Of a commit: "<step> <updates>".
LawTraining::LawTraining(const Combination& combination, const LawSurroundings& surroundings)
    : c_(combination),
      training_(training_of(combination)),
      folder_(surroundings.folder),
      call_(level_of(combination, kCallers) == "changing" ? 5 : 0),
      model_(make_law_model(combination)),
      space_(tensors_of(combination, *model_, caller_memory_), number_of(combination, kChunk)),
      workers_(number_of(combination, kThreads)),
      ops_(workers_, best_instruction_set(), training_.products) {
  if (surroundings.start == TierStart::fresh && level_of(c_, kBegins) == "over a commit")
    leave_commit(c_, surroundings);
  DryRun dry = dry_run_of(c_, *model_, workers_);
  dry.trace = testing::managed_trace(dry.trace, {space_.tensors().begin(), space_.tensors().end()});
  held_ = testing::held_in(dry.trace);
  if (nests(c_)) dry.trace = testing::nested_trace(dry.trace, held_);
  options_ = options_of(c_, space_, dry, surroundings);
  if (training_.squares_elsewhere > 0) options_.hooks.model_ranks = &other_part_.emplace(surroundings.ranks);
  device_ = std::make_unique<SimulatedDevice>(
      SimulatedDeviceOptions{.budget_bytes = options_.device_budget_bytes,
                             .strict = level_of(c_, kStrict) == "on",
                             .caller_makes_small_copies = level_of(c_, kDeviceCopies) == "caller"});
  call_([&] {
    offloader_ =
        std::make_unique<Offloader>(space_, options_, trace_told(c_, dry.trace), *device_, workers_, log_);
  });
  make_access();
  if (SavedActivations* const saved = offloader_->saved_activations()) saved_inputs_.emplace(*saved, call_);
  arena_.emplace(offloader_->work_memory());
  if (surroundings.start == TierStart::fresh) {
    load_initial_values(surroundings.folder);
    return;
  }
  const std::string& info = offloader_->commits().taken_up_info();
  completed_ = std::stoull(info);
  updates_ = std::stoull(info.substr(info.find(' ')));
}

void LawTraining::make_access() {
  access_ = &caller_.emplace(*offloader_, call_);
  if (nests(c_)) access_ = &nesting_.emplace(*access_, held_);
  if (training_.gradients == GradientOrigin::leases) return;
  access_ = &owning_.emplace(*access_, std::vector(space_.tensors().begin(), space_.tensors().end()));
  access_ = &handing_.emplace(*access_, model_->tensors(), training_.gradients == GradientOrigin::borrowed,
                              [this](TensorId tensor, std::span<const std::byte> gradient) {
                                if (!training_.has_gradient(completed_ + 1, tensor)) return;
                                call_([&] { offloader_->hand_over_gradient(tensor, gradient); });
                              });
}

LawTraining::~LawTraining() {
  if (save_ != nullptr) save_->thread.join();
  arena_.reset();
  call_([&] { offloader_.reset(); });
}

void LawTraining::load_initial_values(const std::filesystem::path& folder) {
  TrainingState& state = offloader_->state();
  const std::string_view way = level_of(c_, kInitialValues);
  const auto fill = [this](TensorId tensor, uint64_t first, std::span<float> values) {
    model_->initial_values(tensor, first, values);
  };
  if (way == "callback") return call_([&] { state.initialise(fill); });
  if (way == "written") return write_initial_values();
  std::vector<std::vector<float>> values(space_.tensor_count());
  std::vector<TensorArray> arrays;
  std::vector<FilePart> parts;
  const std::filesystem::path path = folder / "initial values";
  std::ofstream file(path, std::ios::binary);
  for (uint32_t t = 0; t < values.size(); ++t) {
    values[t].resize(space_.place(TensorId{t}).elements);
    fill(TensorId{t}, 0, values[t]);
    const auto* const data = reinterpret_cast<const std::byte*>(values[t].data());
    arrays.push_back({TensorId{t}, data, DataType::fp32});
    parts.push_back({TensorId{t}, path, static_cast<uint64_t>(file.tellp()), DataType::fp32});
    file.write(reinterpret_cast<const char*>(data),
               static_cast<std::streamsize>(values[t].size() * sizeof(float)));
  }
  file.close();
  call_([&] { way == "arrays" ? state.load_arrays(arrays) : state.load_file_parts(parts); });
  std::filesystem::remove(path);
}

void LawTraining::write_initial_values() {
  constexpr uint64_t kRun = 5000;
  TrainingState& state = offloader_->state();
  call_([&] {
    state.initialise([](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
  });
  std::vector<float> values;
  for (uint32_t t = 0; t < space_.tensor_count(); ++t) {
    const ValueKind what =
        space_.tensor(TensorId{t}).trainable && t % 2 == 0 ? ValueKind::master : ValueKind::parameter;
    const uint64_t elements = space_.place(TensorId{t}).elements;
    for (uint64_t first = 0; first < elements; first += kRun) {
      values.resize(std::min(kRun, elements - first));
      model_->initial_values(TensorId{t}, first, values);
      call_([&] { state.write_values(TensorId{t}, what, first, values); });
    }
  }
}

void LawTraining::choose_mode() {
  const std::string_view name = level_of(c_, kUpdate);
  const size_t mode =
      name == "mixed" ? (completed_ + 1) % (factors()[kUpdate].levels.size() - 1) : c_[kUpdate];
  call_([&] {
    if (offloader_->why_not(static_cast<UpdateMode>(mode)).empty())
      offloader_->set_update_mode(static_cast<UpdateMode>(mode));
  });
}

ActivationStore* LawTraining::activations() {
  return saved_inputs_ ? &*saved_inputs_ : offloader_->activations();
}

// The micro-batches of a step, without its update.
void LawTraining::run_step(const UpdateSettings& update, float scale, FunctionRef<void(float)> note) {
  const uint64_t step = completed_ + 1;
  const auto announce = [&] {
    call_([&] {
      if (offloader_->update_mode() == UpdateMode::during_backward) offloader_->announce_update(update);
    });
  };
  call_([&] { offloader_->begin_step(); });
  const StepRounds rounds = rounds_of(c_);
  const uint32_t rank = options_.rank;
  if (is_layer_major(c_)) {
    announce();
    // Where a rank has no micro-batch in a round, nobody asks what it computes.
    LayerMajorBatch batch(model_->config(), step, rounds, rank);
    model_->train_layer_major(ops_, *access_, *arena_, batch.runs, scale, activations());
    for (uint32_t round = 0; round < rounds.count(); ++round) {
      if (rounds.has(round, rank)) note(batch.runs[round].loss);
    }
    end_micro_batch();
    return;
  }
  const std::unique_ptr<Ops> dry_ops = make_dry_ops(nullptr, workers_);
  for (uint32_t round = 0; round < rounds.count(); ++round) {
    if (rounds.is_last(round)) announce();
    const TokenBatch tokens(model_->config(), step * 10 + rounds.number(round, rank));
    const bool has_data = rounds.has(round, rank);
    const float loss = model_->train_micro_batch(has_data ? ops_ : *dry_ops, *access_, *arena_, tokens.view(),
                                                 scale, micro_batch_prefix(round), activations());
    if (has_data) note(loss);
    end_micro_batch();
  }
}

void LawTraining::end_micro_batch() {
  if (handing_) handing_->end_micro_batch();
  call_([&] { offloader_->end_micro_batch(); });
}

UpdateResult LawTraining::step(std::vector<uint32_t>* losses, bool poisoned) {
  const uint64_t step = completed_ + 1;
  const float loss_scale =
      poisoned ? std::numeric_limits<float>::infinity() : loss_scale_of(training_.type, step);
  const std::vector<OptimizerSettings> groups = settings(updates_ + 1, training_.optimizer);
  const UpdateSettings update{groups, updates_ + 1, training_.clip_norm, poisoned ? 1 : loss_scale};
  run_step(update, loss_scale / static_cast<float>(training_.accumulation), [&](float loss) {
    if (losses != nullptr) losses->push_back(std::bit_cast<uint32_t>(loss));
  });
  call_([&] { offloader_->compare_ranks(step); });
  const UpdateResult result = call_([&] { return offloader_->update(update); });
  if (handing_) handing_->end_step();
  updates_ += result.applied ? 1 : 0;
  if (result.applied || (!poisoned && !result.partly_applied)) completed_ = step;
  if (offloader_->update_mode() == UpdateMode::next_forward && result.applied != offloader_->update_pending())
    throw std::logic_error("an update for the next forward does not wait for it");
  return result;
}

bool LawTraining::commits_now() const {
  if (!offloader_->commits().are_kept() || level_of(c_, kCommits) == "in place") return false;
  const uint64_t cadence = number_of(c_, kCommits);
  return cadence > 0 && completed_ % cadence == 0;
}

void LawTraining::begin_commit() {
  // Nothing pins the commit of all on the other ranks; none of them makes another one without the first.
  if (options_.ranks > 1) finish_save();
  const uint64_t step = completed_;
  call_([&] {
    offloader_->commits().begin(fmt::format("{} {}", step, updates_),
                                options_.retained_commits > 0 && step == 2);
  });
}

void LawTraining::change_budget() {
  if (level_of(c_, kBudgetChange) == "none") return;
  call_([&] {
    if (completed_ == 1) offloader_->budget().set(offloader_->budget().least());
    if (completed_ == 2 && level_of(c_, kBudgetChange) == "down and up")
      offloader_->budget().set(options_.host_budget_bytes);
  });
}

void LawTraining::begin_save() {
  if (level_of(c_, kSaves) == "none") return;
  finish_save();
  if (!offloader_->commits().are_kept() || call_([&] { return offloader_->commits().finish(); }) == 0) return;
  if (options_.rank > 0) return;
  save_ = std::make_unique<Save>();
  if (options_.ranks == 1) {
    save_->commit = call_([&] { return offloader_->commits().pin(); });
  } else {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank)
      save_->shards.push_back(tier_folders(c_, folder_of_rank(c_, folder_.parent_path(), rank)));
    save_->number = offloader_->commits().last();
  }
  save_->thread = std::thread([save = save_.get()] { save->copy(); });
}

void LawTraining::finish_save() {
  if (save_ == nullptr) return;
  const std::unique_ptr<Save> save = std::move(save_);
  save->thread.join();
  if (save->failure != nullptr) std::rethrow_exception(save->failure);
  saved_.emplace(save->step, std::move(save->records));
}

float LawTraining::evaluate() {
  call_([&] { offloader_->begin_evaluation(); });
  const TokenBatch held_out(model_->config(), 999);
  const float loss = model_->evaluate(ops_, *access_, *arena_, held_out.view(), "eval/");
  call_([&] { offloader_->end_evaluation(); });
  return loss;
}

std::vector<std::byte> LawTraining::parameters() {
  return call_([&] { return testing::parameters_of(*offloader_, space_); });
}

std::vector<std::byte> LawTraining::records() {
  return call_([&] { return testing::records_of(*offloader_); });
}

std::vector<std::byte> LawTraining::state() {
  std::vector<std::byte> all = records();
  const std::vector<std::byte> others = parameters();
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

}  // namespace terrace::laws
