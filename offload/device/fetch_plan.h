// FetchPlan: chooses the chunks that come to the device before the use that needs them, and the chunks that
// leave for them.
//
// It simulates Belady's rule (evict the farthest next use, within the room that gradients leave at each
// moment) over the next uses of the schedule, where every chunk comes one use ahead of its own. This fixes
// the chunks that move, but not when. A chunk that the rule will evict without another use may leave now, and
// a fetch may take its place as long as every chunk that the rule keeps has room until then. So fetching
// ahead moves no more bytes, however deep it goes, and takes no slot that a gradient will need.
//
// Pure arithmetic on a schedule: it holds no slots and moves nothing. After warm-up it allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/schedule.h>

namespace terrace {

class FetchPlan {
 public:
  struct Now {
    const Schedule& schedule;
    uint32_t position;                   // position of the use in progress; kNever: before the first use
    uint32_t slots;                      // all slots of the device
    uint32_t occupied_slots;             // slots that gradients hold now
    std::span<const ChunkId> in_use;     // ascending; the chunks of the use in progress
    std::span<const ChunkId> residents;  // ascending; all chunks with a slot, those in use included
  };
  struct Fetch {
    ChunkId chunk;
    uint32_t position;  // the position of the use that needs it
  };

  explicit FetchPlan(uint32_t chunk_count) : entry_of_(chunk_count, kNone) {}

  // Plans for the next `uses` uses, without wrapping. `can_fetch` says which chunks have parameters to be
  // fetched.
  void plan(const Now& now, uint32_t uses, FunctionRef<bool(ChunkId)> can_fetch);
  // The chunks that may be fetched now, in the order of need.
  std::span<const Fetch> fetches() const { return fetches_; }
  // The residents that may leave for the fetches: those that the rule evicts before they are used again, in
  // its order.
  std::span<const ChunkId> victims() const { return victims_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Entry: a chunk's stay on the device. Times count uses from now, which is 0.
  struct Entry {
    ChunkId chunk;
    uint32_t next_use;  // kNever: none
    uint32_t came;
    uint32_t last_use;     // the last use before it is gone, if is_used
    uint32_t fetched_for;  // time of the use that it is fetched for; 0: it was resident
    bool is_used = false;
    bool is_gone = false;
  };
  struct Candidate {
    uint32_t next_use;
    uint32_t entry;
  };

  uint32_t position_of(uint32_t time) const { return first_ + time - 1; }
  const ScheduledUse& use(uint32_t time) const { return now_->schedule.use(position_of(time)); }
  uint32_t room(uint32_t time) const;
  void add(ChunkId chunk, uint32_t came, uint32_t next_use, uint32_t fetched_for);
  void offer(uint32_t entry);
  bool evict(uint32_t before);
  bool leaves_later(const Candidate& a, const Candidate& b) const;
  void run(FunctionRef<bool(ChunkId)> can_fetch);
  bool bring(uint32_t time, uint32_t use_time, FunctionRef<bool(ChunkId)> can_fetch);
  void use_up(std::span<const ChunkId> chunks, uint32_t time);
  void choose();

  const Now* now_ = nullptr;
  uint32_t first_ = 0;  // position of the use at time 1
  uint32_t end_ = 0;    // one after the last time
  uint32_t held_ = 0;
  std::vector<uint32_t> entry_of_;  // per chunk
  std::vector<Entry> entries_;
  std::vector<Candidate> heap_;
  std::vector<uint32_t> kept_;  // per time: the number of chunks that must have room
  std::vector<Fetch> fetches_;
  std::vector<ChunkId> victims_;
};

}  // namespace terrace
