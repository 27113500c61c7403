// StateKeeper keeps the state of a training run: commits on nvme at their times, and checkpoints. With
// commits, a checkpoint is copied from one while training goes on. It must never let a failure of either
// pass, and never begin a commit while a checkpoint is being copied: the drives have room for two states of
// the records, not three.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/watch/watched_votes.h>
#include <terrace/runtime/checkpoint/background_save.h>
#include <terrace/runtime/checkpoint/commit_cadence.h>
#include <terrace/runtime/checkpoint/commit_copies.h>
#include <terrace/runtime/checkpoint/commit_info.h>

namespace terrace {

struct SavedCheckpoint {
  uint64_t step = 0;
  std::filesystem::path folder;  // of the step
};

// The states that have become durable since the last call.
struct KeptState {
  std::optional<uint64_t> commit_step;        // step of the last commit, now durable
  std::optional<SavedCheckpoint> checkpoint;  // a complete checkpoint
};

// Used by the thread that trains, between two steps.
class StateKeeper {
 public:
  using Describe = FunctionRef<CheckpointInfo()>;  // the state as it is now

  // All references outlive this. Of several ranks the first one's cadence counts.
  StateKeeper(Offloader& offloader, CommitCopies copies, CommitCadence cadence, const WatchedVotes& ranks,
              Log& log);
  // Gives up a checkpoint that is not complete.
  ~StateKeeper();

  // Call when the run goes on from the commit in the tier, which is that of `step`.
  void took_up(uint64_t step);

  // Notices saves that have ended and throws their failure, starts the copy of a checkpoint whose commit is
  // durable, and begins a commit when one is due. Waits for nothing but, of several ranks, for the others.
  KeptState look_after(uint64_t step, Describe describe);
  // Begins a commit of the state, unless it is already committed or being committed and need not be retained.
  // Waits for a commit or a copy that is in progress.
  KeptState begin_commit(uint64_t step, Describe describe, bool retain);
  // Waits until the last commit is durable.
  KeptState finish_commit();
  // Returns the step of the last commit that is durable, also where no call has noticed that yet.
  std::optional<uint64_t> durable_step() const;

  // The same on all ranks: whether begin_save() may be called.
  bool copies_commits() const { return copies_.are_possible(); }
  // Saves the state into `folder`, which outlives the save, and waits only for a checkpoint that is still
  // being copied. A returned checkpoint is complete. Every rank calls it; `folder` is null on all but the
  // first, which do not hear of the end.
  KeptState begin_save(const CheckpointFolder* folder, uint64_t step, Describe describe);
  // Waits for the checkpoint that begin_save() started, if any.
  KeptState finish_save();
  bool is_saving() const { return wanted_ || save_; }

 private:
  struct Wanted {
    const CheckpointFolder* folder;  // null: another rank has it
    uint64_t step;
  };

  void commit(uint64_t step, Describe describe, bool retain);
  void see_commit(bool wait, KeptState& kept);
  void see_save(bool wait, KeptState& kept);
  void start_copy();

  Offloader& offloader_;
  const CommitCopies copies_;
  CommitCadence cadence_;
  const WatchedVotes& ranks_;
  Log& log_;
  std::optional<uint64_t> committing_step_;  // set until see_commit() has seen its end
  uint64_t commit_before_ = 0;               // the last commit in the tier when it began
  std::optional<uint64_t> durable_step_;
  std::optional<Wanted> wanted_;  // a checkpoint that waits for its commit
  std::unique_ptr<BackgroundSave> save_;
};

}  // namespace terrace
