// Committer: makes the state of a step boundary durable while the next step runs, on a thread and an
// engine of its own. It must never write a clean chunk, give up the last commit before the next one is
// durable, on every rank where there are several, or read memory that the update has begun to change.
//
//   begin()          takes a snapshot of the tier's blocks and queues the newer chunks in host memory; no I/O
//   thread           writes queued chunks from host memory to free slots, calls fdatasync, writes the
//                    manifest; hears that all ranks have theirs; then the commit before gives up its slots
//   before_change()  says that the update is about to change a cached chunk: if the chunk is queued, it is
//                    written next, and only the caller waits for it
//
// The state of a chunk in host memory, compared with the tier:
//   clean  --change-->  dirty  --begin-->  queued  --written-->  clean
//                         ^------- the commit fails ------'
//
// The step thread calls begin() to wait_idle(), except may_change(), before_change() and begin_write(), which
// the thread that runs the update calls. Any thread may pin. There is one mutex; nothing slow happens under
// it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/clock.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/base/mutex.h>
#include <terrace/base/record_layout.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// CommitPart: the parts of a commit, each in a store of its own. Trained parameters are a part where records
// do not hold whole masters.
enum class CommitPart : uint8_t { records, frozen, parameters };
inline constexpr std::array<CommitPart, 3> kCommitParts = {CommitPart::records, CommitPart::frozen,
                                                           CommitPart::parameters};
constexpr size_t index_of(CommitPart part) {
  return static_cast<size_t>(part);
}

// CommitSlots: the slots of a commit's blocks, which the commit keeps from being reused.
struct CommitSlots {
  uint64_t commit = 0;
  std::string info;
  std::vector<uint64_t> tensor_steps;  // of TensorSteps; empty where they are not counted
  std::array<BlockStore::Snapshot, kCommitParts.size()> parts;  // empty where there is no such store

  const BlockStore::Snapshot& operator[](CommitPart part) const { return parts[index_of(part)]; }
  BlockStore::Snapshot& operator[](CommitPart part) { return parts[index_of(part)]; }
};

// CommitStores: the stores of a commit; all outlive the committer.
struct CommitStores {
  TierSpace* space = nullptr;
  std::array<BlockStore*, kCommitParts.size()> parts{};  // null: the commits have no such store
  RecordLayout layout = {};                              // the layout of the records
  Communicator* ranks = nullptr;  // each has a shard of the state; null: there is one rank

  BlockStore* operator[](CommitPart part) const { return parts[index_of(part)]; }
};

class Committer {
 public:
  struct Counters {
    uint64_t commits = 0;
    uint64_t written_bytes = 0;
    uint64_t manifest_bytes = 0;
    uint64_t wait_ns = 0;  // waits of the step thread and of updates
  };

  Committer(CommitStores stores, uint32_t chunk_count, uint32_t retained_commits,
            std::unique_ptr<io::Engine> engine, StepWatch& watch, Log& log);
  ~Committer();  // waits for the commit in progress
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // Adds a part of a chunk that is resident in host memory and stays there from now on. `dirty`: it is newer
  // than in the tier.
  void add_cached(CommitPart part, ChunkId chunk, const std::byte* memory, bool dirty);
  // True if the added part of the chunk is newer than in the tier.
  bool is_newer(CommitPart part, ChunkId chunk);
  // Forgets the added part of the chunk, which leaves host memory; no commit is in progress.
  void forget_cached(CommitPart part, ChunkId chunk);
  // Forgets everything that was added, because all state is about to be loaded anew; waits for a commit in
  // progress.
  void forget_cached();
  // Takes up the commit whose blocks the stores hold; the `retained` commits, oldest first, stay beside it.
  void take_up(CommitSlots commit, bool is_retained, std::vector<CommitSlots> retained);

  // Commits the state that `state` proves whole. Waits for a commit in progress and for the end of a pin;
  // throws the failure of the last commit.
  void begin(const WholeState& state, std::string_view info, std::span<const uint64_t> tensor_steps,
             bool retain);
  bool in_progress() const;
  // Waits until no commit is in progress and returns the number of the last durable one; throws the failure
  // of the last commit.
  uint64_t finish();
  void throw_failure();
  uint64_t last_commit() const;
  // True if a commit that failed may be there all the same, here or on another rank.
  bool may_have_another() const;
  // The number that the next begin() gives its commit. Only the thread that calls begin() may ask.
  uint64_t next_commit() const { return next_number_; }

  // True if the added parts of the chunk may be changed without waiting. If not, a queued part is written
  // next.
  bool may_change(ChunkId chunk);
  // Waits until the added parts of the chunk may be changed, and marks them dirty.
  void before_change(ChunkId chunk);
  // Calls BlockStore::begin_write() of the part's store, but where the commit in progress has the slots,
  // waits for the commit. Returns false if only writes of `engine`, the caller's,
  // may still free a slot. Throws Error(capacity) when there is none.
  bool begin_write(CommitPart part, const io::Engine& engine, ChunkId chunk, uint32_t block,
                   std::span<const std::byte> source, BlockStore::Write& write);
  // Waits until no commit is in progress.
  void wait_idle();

  // No commit begins between pin() and unpin(). There must be a durable commit.
  const CommitSlots& pin();
  void unpin();

  Counters counters() const;

 private:
  enum class State : uint8_t { clean, dirty, queued };
  struct Cached {
    CommitPart part;
    ChunkId chunk;
    const std::byte* memory;
    State state = State::dirty;
    uint32_t blocks_begun = 0;  // by the commit in progress
    uint32_t blocks_written = 0;
  };
  // A block in flight, owned by the committer's thread.
  struct Transfer {
    Committer* committer = nullptr;
    uint32_t cached = 0;
    BlockTransfer block;
  };
  static void on_written(void* context, BlockTransfer& block, const io::Completion& completion,
                         std::exception_ptr failure) noexcept;

  BlockStore& store_of(const Cached& cached) const { return *stores_[cached.part]; }
  // Index into cached_, or kNone.
  uint32_t& cached_of(CommitPart part, ChunkId chunk) {
    return cached_of_[index_of(part) * chunk_count_ + index_of(chunk)];
  }
  bool may_take_slot(CommitPart part) const;
  void wait_for_slots(CommitPart part);
  void work();
  std::optional<TraceEvent> begin_recording() const;
  void end_recording(TraceEvent commit, bool failed) const;
  void commit();
  uint64_t write_commit(bool& may_be_there);
  void agree(std::exception_ptr failure);
  void write_queued();
  Cached* next_block();
  bool submit_block(Transfer& transfer, Cached& cached);
  void block_written(const Transfer& transfer, std::exception_ptr failure) noexcept;
  TierManifest make_manifest() const;
  void make_last(uint64_t manifest_bytes);
  void remove_manifest(uint64_t commit);
  // Blocks the calling thread until `condition`, with the mutex held; `what` and `chunk` name the wait in the
  // watch.
  template <typename Condition>
  void wait_until(Condition condition, std::optional<ChunkId> chunk, std::string_view what);

  const CommitStores stores_;
  const uint32_t chunk_count_;
  const uint32_t retained_limit_;
  const SteadyClock clock_;
  StepWatch& watch_;
  Log& log_;
  std::unique_ptr<io::Engine> engine_;  // destroyed by the thread, its owner
  std::vector<uint32_t> cached_of_;     // by part and chunk; kNone
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> queue_;  // by the thread: the commit in progress, in order
  size_t queue_front_ = 0;
  std::exception_ptr write_failure_;  // by the thread: the commit's first failure
  // The slots of each part's store that the commit in progress still needs.
  std::array<std::atomic<uint64_t>, kCommitParts.size()> slots_wanted_{};

  mutable Mutex mutex_;
  std::condition_variable_any work_added_;  // for the thread
  std::condition_variable_any progress_;    // for every thread that waits for a commit
  std::vector<Cached> cached_ TERRACE_GUARDED_BY(mutex_);
  std::optional<uint32_t> hurried_ TERRACE_GUARDED_BY(mutex_);
  bool in_progress_ TERRACE_GUARDED_BY(mutex_) = false;
  bool pinned_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  uint64_t last_commit_ TERRACE_GUARDED_BY(mutex_) = 0;
  Counters counters_ TERRACE_GUARDED_BY(mutex_);

  // The committer's thread owns these while a commit is in progress, else the holder of the mutex.
  std::optional<CommitSlots> last_;
  std::optional<CommitSlots> next_;
  // The slots of failed commits whose manifest may be on the drive already; they stay until another commit is
  // durable.
  std::vector<CommitSlots> uncertain_;
  std::deque<CommitSlots> retained_;
  bool retain_next_ = false;
  bool retain_last_ = false;
  uint64_t next_number_ = 1;
  std::thread thread_;
};

}  // namespace terrace
