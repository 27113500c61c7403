// Commits: committed states on nvme that survive any crash; between steps only, on the thread that trains.
//
// Where commits are kept (are_kept()), a commit costs the blocks that are newer in host memory than in the
// tier, and becomes durable while training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/memory/space/tensor.h>
#include <terrace/offload/commits/pinned_epoch.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

class BlockStore;
class BlockTransfer;
class EpochCommitter;
class HostArena;
class StateBlocks;
class StepBoundary;
struct EpochStores;

class Commits {
 public:
  // Made by the Offloader. Goes on from what the tier has, as the options say. All references outlive this.
  Commits(StateBlocks& blocks, StepBoundary& boundary, HostArena& arena);
  // Waits for a commit in progress.
  ~Commits();
  Commits(const Commits&) = delete;
  Commits& operator=(const Commits&) = delete;

  // The options ask for commits and they are possible.
  bool are_kept() const { return committer_ != nullptr; }
  // Why not, in words for the log; empty when they are kept.
  const std::string& why_not_kept() const;

  // Begins a commit of the whole state between two steps, with `info`, opaque text of the caller's. Returns
  // as soon as training may go on; the commit becomes durable meanwhile. Waits first for a commit in progress
  // and for the end of a PinnedEpoch. With `retain` the commit outlives those after it: the last
  // options.retained_epochs of these stay. Throws what an earlier commit failed with; so does begin_step().
  // While an update is pending the commit is put off to its end: the first backward use of the next step, or
  // whatever finishes the update before. An update that fails takes the commit with it, and finish() says so,
  // whoever the failure itself was thrown to. Throws Error(cancelled) where the state is not whole and no
  // update is pending, Error(misuse) where no commits are kept.
  void begin(std::string_view info, bool retain = false);
  bool in_progress() const;
  // Waits until the commit in progress, if any, is durable and returns the number of the last one. Throws
  // what went wrong, once; the commit before is still there then. That it returns proves that the commit of
  // the last begin() is durable.
  uint64_t finish();
  uint64_t last() const;  // in the tier; 0: none
  // The text of the commit that TierStart::resume went on from; empty otherwise.
  const std::string& taken_up_info() const { return taken_up_info_; }
  // The commit of an earlier run that is to be discarded is still there: until this run's first one.
  bool earlier_stays() const { return earlier_ > 0 && last() == earlier_; }
  // What becomes of the files of a tier that has a commit, at the end; they stay unless this says otherwise.
  // Without a commit nothing stays.
  void keep_tier(bool keep) { keeps_tier_ = keep; }
  // The last commit, to be read by one other thread while training goes on; there must be one. Waits for a
  // commit in progress. Goes before the offloader does; one at a time.
  std::unique_ptr<PinnedEpoch> pin();

  // --- For the Offloader ---
  // What an earlier commit failed with.
  void throw_failure();
  // The update that commits were put off for is over, and has left a whole state or failed.
  void update_over(bool is_whole);
  void wait_idle();
  // What is in host memory is about to be loaded anew.
  void forget_cached();
  // The committer knows what is in host memory.
  bool knows_cached() const { return knows_cached_; }
  void count(OffloadCounters& counters) const;

 private:
  struct PutOff {
    std::string info;
    bool retain;
  };
  void require_kept(std::string_view action) const;
  EpochStores stores() const;
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
  std::unique_ptr<EpochCommitter> committer_;  // null where no commits are kept
  std::optional<PutOff> put_off_;              // to the end of the update that is running
  uint64_t begun_ = 0;                         // of the last begin(), until finish() answers it
  std::string taken_up_info_;
  uint64_t earlier_ = 0;  // of another run, which goes with the first commit of this one
  bool keeps_tier_ = true;
  bool knows_cached_ = false;
  uint64_t copied_bytes_ = 0;  // of parameters that live on the device
};

}  // namespace terrace
