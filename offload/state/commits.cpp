#include <terrace/offload/state/commits.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/commits/committer.h>
#include <terrace/offload/commits/pinned_commit_reader.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>

namespace terrace {

Commits::Commits(StateBlocks& blocks, StepBoundary& boundary, HostArena& arena)
    : blocks_(blocks), boundary_(boundary) {
  const RunContext& run = blocks.run();
  if (!run.plan.keeps_commits) return;
  TierStores& tiers = blocks.tiers();
  pin_memory_ = arena.take(run.plan.commit_slots * run.plan.commit_slot_bytes, "reading commits");
  committer_ = std::make_unique<Committer>(stores(), run.space.chunk_count(), run.options.retained_commits,
                                           tiers.make_engine("commits"), run.watch, run.log);
  blocks.homes().records.commit_with(committer_.get());
  if (has_parameters_in_commits(run.plan)) blocks.homes().params.commit_with(committer_.get());
  if (!tiers.has_found_commits()) return;
  if (run.options.tier_start == TierStart::resume) {
    taken_up_info_ = tiers.last_found_commit().info;
    take_up_steps(tiers.last_found_commit());
    adopt_found();
    load_last();
  } else {
    earlier_ = tiers.last_found_commit().commit;
    adopt_found();
  }
}

Commits::~Commits() {
  if (committer_ == nullptr) return;
  committer_->wait_idle();
  // Another rank may have heard that all have a commit of which this one has not.
  const bool others_may_have = blocks_.run().options.ranks > 1 && committer_->may_have_another();
  blocks_.tiers().tier()->keep_files(keeps_tier_ && (committer_->last_commit() > 0 || others_may_have));
}

const std::string& Commits::why_not_kept() const {
  return blocks_.run().plan.why_no_commits;
}

CommitStores Commits::stores() const {
  const TierStores& tiers = blocks_.tiers();
  const MemoryPlan& plan = blocks_.run().plan;
  CommitStores stores;
  stores.space = tiers.tier();
  stores.parts[index_of(CommitPart::records)] = tiers.records();
  stores.parts[index_of(CommitPart::frozen)] = tiers.frozen();
  if (has_parameters_in_commits(plan))
    stores.parts[index_of(CommitPart::parameters)] =
        tiers.params() != nullptr ? tiers.params() : tiers.copied();
  stores.layout = plan.record_layout;
  stores.ranks = blocks_.run().options.hooks.communicator;
  return stores;
}

void Commits::take_up_steps(const TierManifest& commit) {
  TensorSteps& steps = blocks_.homes().steps;
  if (commit.tensor_steps.size() == steps.counts().size()) return steps.set(commit.tensor_steps);
  const bool has_counts = !commit.tensor_steps.empty();
  if (has_counts && !steps.counts().empty())
    throw Error(
        ErrorKind::config,
        {fmt::format("cannot go on from commit {}", commit.commit), blocks_.tiers().records()->name(),
         fmt::format("it has {} tensors, and this run {}", commit.tensor_steps.size(), steps.counts().size()),
         "go on with the model and the optimizer that it was made of"});
  throw Error(ErrorKind::config,
              {fmt::format("cannot go on from commit {}", commit.commit), blocks_.tiers().records()->name(),
               has_counts ? "its tensors count their own steps" : "its tensors have one count of steps",
               "set " + Option::unused_gradients + (has_counts ? " to skip" : " to zero")});
}

// --- Making commits ---

void Commits::require_kept(std::string_view action) const {
  if (committer_ == nullptr)
    throw Error(ErrorKind::misuse,
                {std::string(action), "the state in memory", "no commits are kept: " + why_not_kept(),
                 "ask first whether commits are kept"});
}

void Commits::begin(std::string_view info, bool retain) {
  boundary_.require_nothing_open("cannot commit");
  require_kept("cannot commit");
  blocks_.run().watch.set_activity("a commit");
  if (put_off_) boundary_.finish_update();  // the commit that was put off begins then
  begun_ = 0;
  throw_failure();
  const uint64_t number = committer_->next_commit();
  if (boundary_.is_updating()) {
    put_off_ = PutOff{std::string(info), retain};
  } else {
    commit_now(info, retain);
  }
  begun_ = number;
}

void Commits::update_over(bool is_whole) {
  if (!put_off_) return;
  const PutOff commit = *std::exchange(put_off_, std::nullopt);
  if (!is_whole) return;
  try {
    commit_now(commit.info, commit.retain);
  } catch (...) {
    put_off_failure_ = std::current_exception();
  }
}

void Commits::commit_now(std::string_view info, bool retain) {
  const RunContext& run = blocks_.run();
  const TimeScope committing(run.account, TimeCause::commit);
  const WholeState& state = boundary_.custody().whole("cannot commit");
  if (!knows_cached_) add_cached(true);
  if (blocks_.tiers().copied() != nullptr && !run.params_live_below()) copy_parameters();
  committer_->begin(state, info, blocks_.homes().steps.counts(), retain);
}

bool Commits::in_progress() const {
  return committer_ != nullptr && (put_off_ || committer_->in_progress());
}

uint64_t Commits::finish() {
  if (committer_ == nullptr) return 0;
  blocks_.run().watch.set_activity("a commit");
  const uint64_t begun = std::exchange(begun_, 0);
  boundary_.finish_update();
  throw_failure();
  const uint64_t last = committer_->finish();
  if (last >= begun) return last;
  throw Error(ErrorKind::cancelled, {"the last commit was not made", blocks_.tiers().records()->name(),
                                     "what it waited for failed, and was reported then",
                                     "go on from the commit before it, or from a checkpoint"});
}

void Commits::end() {
  if (committer_ != nullptr) committer_->finish();
}

uint64_t Commits::last() const {
  return committer_ != nullptr ? committer_->last_commit() : 0;
}

std::unique_ptr<PinnedCommit> Commits::pin() {
  require_kept("cannot read a commit of");
  const RunContext& run = blocks_.run();
  run.watch.set_activity("a copy of the last commit");
  boundary_.finish_update();
  return std::make_unique<PinnedCommit>(std::make_unique<PinnedCommit::Reader>(
      *committer_, stores(), run.space, blocks_.tiers().make_engine("copies of commits"), pin_memory_,
      run.plan.commit_slot_bytes, run.instruction_set));
}

// --- The committer ---

void Commits::throw_failure() {
  if (put_off_failure_ != nullptr) std::rethrow_exception(std::exchange(put_off_failure_, nullptr));
  if (committer_ != nullptr) committer_->throw_failure();
}

void Commits::wait_idle() {
  if (committer_ != nullptr) committer_->wait_idle();
}

void Commits::forget_cached() {
  if (committer_ == nullptr) return;
  committer_->forget_cached();
  knows_cached_ = false;
}

// `dirty`: the tier lacks the resident chunks.
void Commits::add_cached(bool dirty) {
  const RunContext& run = blocks_.run();
  const StateHomes& homes = blocks_.homes();
  knows_cached_ = true;
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (run.is_trained(chunk)) {
      if (!homes.records.is_streamed(chunk))
        committer_->add_cached(CommitPart::records, chunk, homes.records.resident(chunk),
                               dirty && homes.records.is_newer(chunk));
      if (run.is_compact() && homes.params.host_slot(chunk) != nullptr)
        committer_->add_cached(CommitPart::parameters, chunk, homes.params.host_slot(chunk), dirty);
    } else if (homes.params.host_slot(chunk) != nullptr) {
      committer_->add_cached(CommitPart::frozen, chunk, homes.params.host_slot(chunk), dirty);
    }
  }
}

void Commits::count(OffloadCounters& counters) const {
  if (committer_ == nullptr) return;
  const Committer::Counters commits = committer_->counters();
  counters.commit_count += commits.commits;
  counters.commit_write_bytes += commits.written_bytes + copied_bytes_;
  counters.manifest_bytes += commits.manifest_bytes;
  counters.commit_wait_ns += commits.wait_ns;
}

}  // namespace terrace
