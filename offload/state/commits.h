// Commits: durable states on nvme that survive any crash. The step thread calls it, between steps only.
//
// Where commits are kept (are_kept()), a commit writes only the blocks that are newer in host memory than in
// the tier, and becomes durable while training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/memory/space/tensor.h>
#include <terrace/offload/commits/pinned_commit.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

class BlockStore;
class BlockTransfer;
class Committer;
class HostArena;
class StateBlocks;
class StepBoundary;
struct TierManifest;
struct CommitStores;

class Commits {
 public:
  // The Offloader constructs it. It takes up the commits in the tier as the options say. All references
  // outlive it.
  Commits(StateBlocks& blocks, StepBoundary& boundary, HostArena& arena);
  // Waits for a commit in progress.
  ~Commits();
  Commits(const Commits&) = delete;
  Commits& operator=(const Commits&) = delete;

  // True if the options ask for commits and commits are possible.
  bool are_kept() const { return committer_ != nullptr; }
  // The reason why no commits are kept, in words for the log; empty if they are kept.
  const std::string& why_not_kept() const;

  // Begins a commit of the whole state between two steps. `info` is opaque text of the caller. The call
  // returns as soon as training may go on; the commit becomes durable meanwhile. It waits first for a commit
  // in progress and for the end of a PinnedCommit. With `retain` the commit outlives later ones: the last
  // options.retained_commits retained commits stay. While an update is pending the commit is put off to the
  // update's end: the first backward use of the next step, or an earlier call that finishes the update. If
  // that update fails, the commit is not made, and finish() says so in any case. Throws the failure of an
  // earlier commit, as begin_step() does; Error(cancelled) where the state is not whole and no update is
  // pending; Error(misuse) where no commits are kept.
  void begin(std::string_view info, bool retain = false);
  bool in_progress() const;
  // Waits until the commit in progress, if any, is durable, and returns the number of the last commit. Throws
  // its failure once; the commit before is still there then. If finish() returns, the commit of the last
  // begin() is durable.
  uint64_t finish();
  // After a failure, when nothing may be asked of other ranks any more: waits for the end of the commit in
  // progress, and throws what it or the one before failed with, once.
  void end();
  uint64_t last() const;  // the last commit in the tier; 0: none
  // The text of the commit that TierStart::resume went on from; empty otherwise.
  const std::string& taken_up_info() const { return taken_up_info_; }
  // True while the discarded commit of an earlier run is still there, which is until this run's first commit.
  bool earlier_stays() const { return earlier_ > 0 && last() == earlier_; }
  // Says whether the files of a tier with a commit stay at the end; by default they do. Without a commit no
  // files stay.
  void keep_tier(bool keep) { keeps_tier_ = keep; }
  // Pins the last commit, which must exist, for one other thread to read while training goes on. Waits for a
  // commit in progress. Only one pin exists at a time; it must be destroyed before the offloader.
  std::unique_ptr<PinnedCommit> pin();

  // --- For the Offloader ---
  // Throws the failure of an earlier commit, if there is one.
  void throw_failure();
  // Says that the update which a commit waits for is over, and whether it left a whole state. A commit that
  // cannot begin then leaves its failure to throw_failure(): the update that ended here has not failed.
  void update_over(bool is_whole);
  void wait_idle();
  // Forgets the resident chunks, because they are about to be loaded anew.
  void forget_cached();
  // True if the committer knows the resident chunks.
  bool knows_cached() const { return knows_cached_; }
  void count(OffloadCounters& counters) const;

 private:
  // Takes the counts of TensorSteps from a commit. Throws Error(config) where it was made without.
  void take_up_steps(const TierManifest& commit);
  struct PutOff {
    std::string info;
    bool retain;
  };
  void require_kept(std::string_view action) const;
  CommitStores stores() const;
  void adopt_found();
  void load_last();
  void take_records(const BlockTransfer& read);
  void load_parameters(ChunkId chunk, BlockStore& store);
  void copy_parameters();
  void add_cached(bool dirty);
  void commit_now(std::string_view info, bool retain);

  StateBlocks& blocks_;
  StepBoundary& boundary_;
  std::span<std::byte> pin_memory_;
  std::unique_ptr<Committer> committer_;  // null where no commits are kept
  std::optional<PutOff> put_off_;         // the commit that waits for the running update
  std::exception_ptr put_off_failure_;    // why it could not begin when the update was over
  uint64_t begun_ = 0;                    // the number of the last begin(), until finish()
  std::string taken_up_info_;
  uint64_t earlier_ = 0;  // a discarded commit of another run, until this run's first commit
  bool keeps_tier_ = true;
  bool knows_cached_ = false;
  uint64_t copied_bytes_ = 0;  // parameters that live on the device
};

}  // namespace terrace
