#include <terrace/runtime/checkpoint/state_keeper.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

StateKeeper::StateKeeper(Offloader& offloader, CommitCopies copies, CommitCadence cadence,
                         const WatchedVotes& ranks, Log& log)
    : offloader_(offloader), copies_(std::move(copies)), cadence_(cadence), ranks_(ranks), log_(log) {}

StateKeeper::~StateKeeper() = default;

void StateKeeper::took_up(uint64_t step) {
  durable_step_ = step;
  cadence_.begun(step);
}

KeptState StateKeeper::look_after(uint64_t step, Describe describe) {
  KeptState kept;
  see_commit(false, kept);
  see_save(false, kept);
  if (!offloader_.commits().are_kept()) return kept;
  const bool is_due = !committing_step_ && !is_saving() && cadence_.due(step);
  if (!ranks_.of_first("the next commit", is_due)) return kept;
  see_commit(true, kept);  // the first rank has seen that all have it
  commit(step, describe, false);
  return kept;
}

KeptState StateKeeper::begin_commit(uint64_t step, Describe describe, bool retain) {
  KeptState kept;
  if (!retain && (committing_step_ == step || (!committing_step_ && durable_step_ == step))) return kept;
  kept = finish_save();
  see_commit(true, kept);
  commit(step, describe, retain);
  return kept;
}

void StateKeeper::commit(uint64_t step, Describe describe, bool retain) {
  const CheckpointInfo info = describe();
  TERRACE_ASSERT(info.step == step, "the state that is described is another one");
  commit_before_ = offloader_.commits().last();
  offloader_.commits().begin(commit_info_text(info), retain);
  committing_step_ = step;
  cadence_.begun(step);
}

std::optional<uint64_t> StateKeeper::durable_step() const {
  return committing_step_ && offloader_.commits().last() > commit_before_ ? committing_step_ : durable_step_;
}

KeptState StateKeeper::finish_commit() {
  KeptState kept;
  see_commit(true, kept);
  return kept;
}

// A commit that failed is forgotten here: its error is thrown once, and the commit before is still there.
void StateKeeper::see_commit(bool wait, KeptState& kept) {
  if (!committing_step_ || (!wait && offloader_.commits().in_progress())) return;
  const uint64_t step = *committing_step_;
  committing_step_.reset();
  try {
    offloader_.commits().finish();
  } catch (...) {
    wanted_.reset();
    throw;
  }
  durable_step_ = kept.commit_step = step;
  if (wanted_) start_copy();
}

KeptState StateKeeper::begin_save(const CheckpointFolder* folder, uint64_t step, Describe describe) {
  KeptState kept = finish_save();
  if (committing_step_ != step) see_commit(true, kept);
  if (committing_step_ != step && durable_step_ != step) commit(step, describe, false);
  wanted_ = Wanted{folder, step};
  if (committing_step_) {
    see_commit(false, kept);
  } else {
    start_copy();
  }
  return kept;
}

void StateKeeper::start_copy() {
  const Wanted wanted = *std::exchange(wanted_, std::nullopt);
  if (wanted.folder == nullptr) return;
  CommitCopies::Copied commit = copies_.last();
  TERRACE_ASSERT(commit.info.step == wanted.step, "another commit than that of the checkpoint is the last");
  save_ = std::make_unique<BackgroundSave>(*wanted.folder, std::move(commit.info), std::move(commit.source),
                                           log_);
}

KeptState StateKeeper::finish_save() {
  KeptState kept;
  if (wanted_) see_commit(true, kept);
  see_save(true, kept);
  return kept;
}

// The source goes with the save, so that commits may begin again.
void StateKeeper::see_save(bool wait, KeptState& kept) {
  if (!save_ || (!wait && !save_->done())) return;
  const std::unique_ptr<BackgroundSave> save = std::move(save_);
  const uint64_t step = save->step();
  kept.checkpoint = SavedCheckpoint{step, save->finish()};
}

}  // namespace terrace
