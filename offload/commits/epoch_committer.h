// EpochCommitter: makes the state of a step boundary durable while the next step runs, on a thread and an
// engine of its own. It must never write what is clean, give up the last commit before the next one is
// durable, or read memory that the update has begun to change.
//
//   begin()   a snapshot of what the tier holds; what is newer in host memory is queued. No I/O.
//   thread    queued chunks -> free slots, straight from host memory; fdatasync; manifest. Then the commit
//             before lets go of its slots.
//   before_change()  the update is about to change a cached chunk: a queued one is written next, and only the
//             caller waits for it.
//
// What a chunk in host memory is to the tier:
//   clean  --change-->  dirty  --begin-->  queued  --written-->  clean
//                         ^------- the commit fails ------'
//
// begin() to wait_idle() belong to the step thread, but for may_change(), before_change() and begin_write(),
// which are those of the thread that runs the update; pins belong to any. One mutex; nothing slow happens
// under it.
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
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/commits/whole_state.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// What a commit consists of, each in a store of its own. Parameters that are trained are part of it where
// records do not hold whole masters.
enum class EpochPart : uint8_t { records, frozen, parameters };
inline constexpr std::array<EpochPart, 3> kEpochParts = {EpochPart::records, EpochPart::frozen,
                                                         EpochPart::parameters};
constexpr size_t index_of(EpochPart part) {
  return static_cast<size_t>(part);
}

// What a commit holds on to: the slots of its blocks.
struct EpochSlots {
  uint64_t epoch = 0;
  std::string info;
  std::array<BlockStore::Snapshot, kEpochParts.size()> parts;  // empty where there is no such store

  const BlockStore::Snapshot& operator[](EpochPart part) const { return parts[index_of(part)]; }
  BlockStore::Snapshot& operator[](EpochPart part) { return parts[index_of(part)]; }
};

// Where the stores of a commit are; all outlive the committer.
struct EpochStores {
  TierSpace* space = nullptr;
  std::array<BlockStore*, kEpochParts.size()> parts{};  // null: the commits have no such store
  RecordLayout layout = {};                             // of the records

  BlockStore* operator[](EpochPart part) const { return parts[index_of(part)]; }
};

class EpochCommitter {
 public:
  struct Counters {
    uint64_t commits = 0;
    uint64_t written_bytes = 0;
    uint64_t manifest_bytes = 0;
    uint64_t wait_ns = 0;  // of the step thread and of updates
  };

  EpochCommitter(EpochStores stores, uint32_t chunk_count, uint32_t retained_epochs,
                 std::unique_ptr<io::Engine> engine, StepWatch& watch, Log& log);
  ~EpochCommitter();  // after the commit in progress
  EpochCommitter(const EpochCommitter&) = delete;
  EpochCommitter& operator=(const EpochCommitter&) = delete;

  // What lives in host memory, where it stays from now on. `dirty`: newer than in the tier.
  void add_cached(EpochPart part, ChunkId chunk, const std::byte* memory, bool dirty);
  // What was added for the chunk is newer than in the tier.
  bool is_newer(EpochPart part, ChunkId chunk);
  // What was added for the chunk leaves host memory; no commit is in progress.
  void forget_cached(EpochPart part, ChunkId chunk);
  // Everything is about to be loaded anew; waits for a commit in progress.
  void forget_cached();
  // The stores hold the blocks of this commit; `retained`, oldest first, stay with it.
  void take_up(EpochSlots epoch, bool is_retained, std::vector<EpochSlots> retained);

  // Commits the state that is proved whole. Waits for a commit in progress and for a pin to go; throws what
  // the last commit failed with.
  void begin(const WholeState& state, std::string_view info, bool retain);
  bool in_progress() const;
  // Waits until no commit is in progress and returns the number of the last one that is durable; throws what
  // the last one failed with.
  uint64_t finish();
  void throw_failure();
  uint64_t last_epoch() const;
  uint64_t next_epoch() const { return next_number_; }  // what begin() makes; of the thread that begins

  // Whether what is cached of the chunk may be changed without waiting. When not, it is written next.
  bool may_change(ChunkId chunk);
  // It is about to be changed; waits until that is allowed.
  void before_change(ChunkId chunk);
  // As BlockStore::begin_write() of a part's store, but waits for the commit in progress where that has the
  // slots, after telling `before_waiting`. False: only writes of `engine`, which is the caller's, may still
  // free one. Throws Error(capacity) when there are none.
  bool begin_write(EpochPart part, const io::Engine& engine, ChunkId chunk, uint32_t block,
                   std::span<const std::byte> source, BlockStore::Write& write,
                   FunctionRef<void()> before_waiting);
  // Waits until no commit is in progress.
  void wait_idle();

  // Nothing is committed between these two. There is a durable commit.
  const EpochSlots& pin();
  void unpin();

  Counters counters() const;

 private:
  enum class State : uint8_t { clean, dirty, queued };
  struct Cached {
    EpochPart part;
    ChunkId chunk;
    const std::byte* memory;
    State state = State::dirty;
    uint32_t blocks_begun = 0;  // of the commit in progress
    uint32_t blocks_written = 0;
  };
  // A block on its way; of the committer's thread.
  struct Transfer {
    EpochCommitter* committer = nullptr;
    uint32_t cached = 0;
    BlockTransfer block;
  };
  static void on_written(void* context, BlockTransfer& block, const io::Completion& completion,
                         std::exception_ptr failure) noexcept;

  BlockStore& store_of(const Cached& cached) const { return *stores_[cached.part]; }
  // Index into cached_, or kNone.
  uint32_t& cached_of(EpochPart part, ChunkId chunk) {
    return cached_of_[index_of(part) * chunk_count_ + index_of(chunk)];
  }
  bool may_take_slot(EpochPart part) const;
  void wait_for_slots(EpochPart part);
  void work();
  std::optional<TraceEvent> begin_recording() const;
  void end_recording(TraceEvent commit, bool failed) const;
  void commit();
  void write_queued();
  Cached* next_block();
  void submit_block(Transfer& transfer, Cached& cached);
  void block_written(const Transfer& transfer, std::exception_ptr failure) noexcept;
  TierManifest make_manifest() const;
  void make_last(uint64_t manifest_bytes);
  void remove_manifest(uint64_t epoch);
  // Blocks the step thread until `condition`, with the mutex held; the watch says what for.
  template <typename Condition>
  void wait_until(Condition condition, std::optional<ChunkId> chunk, std::string_view what);

  const EpochStores stores_;
  const uint32_t chunk_count_;
  const uint32_t retained_limit_;
  const SteadyClock clock_;
  StepWatch& watch_;
  Log& log_;
  std::unique_ptr<io::Engine> engine_;  // destroyed by the thread, its owner
  std::vector<uint32_t> cached_of_;     // by part and chunk
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> queue_;  // of the commit in progress, in order; of the thread
  size_t queue_front_ = 0;
  std::exception_ptr write_failure_;  // the first of the commit in progress; of the thread
  // By the commit in progress, of each part's store.
  std::array<std::atomic<uint64_t>, kEpochParts.size()> slots_wanted_{};

  mutable Mutex mutex_;
  std::condition_variable_any work_added_;  // for the thread
  std::condition_variable_any progress_;    // for everyone who waits for it
  std::vector<Cached> cached_ TERRACE_GUARDED_BY(mutex_);
  std::optional<uint32_t> hurried_ TERRACE_GUARDED_BY(mutex_);
  bool in_progress_ TERRACE_GUARDED_BY(mutex_) = false;
  bool pinned_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  uint64_t last_epoch_ TERRACE_GUARDED_BY(mutex_) = 0;
  Counters counters_ TERRACE_GUARDED_BY(mutex_);

  // Of the thread while a commit is in progress, else of whoever holds the mutex.
  std::optional<EpochSlots> last_;
  std::optional<EpochSlots> next_;
  // A commit failed when its manifest may be on disk already: its slots stay until another one is durable.
  std::vector<EpochSlots> uncertain_;
  std::deque<EpochSlots> retained_;
  bool retain_next_ = false;
  bool retain_last_ = false;
  uint64_t next_number_ = 1;
  std::thread thread_;
};

}  // namespace terrace
