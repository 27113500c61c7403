// FetchAhead: which chunks come to the device before the use that needs them, and which leave for them.
//
// It goes through the next uses of the schedule as Belady's rule would (farthest next use first, with the
// room that gradients leave at each moment) where every chunk comes one use ahead of its own. That fixes what
// is moved. When it is moved is open: what the rule is going to evict without another use may leave now, and
// a fetch may take its place as long as everything that the rule keeps has room until then. So fetching ahead
// moves no byte more, however deep it goes, and takes no place that a gradient is going to need.
//
// Pure arithmetic on a schedule: it holds no slots and moves nothing. After warm-up it allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/schedule.h>

namespace terrace {

class FetchAhead {
 public:
  struct Now {
    const Schedule& schedule;
    uint32_t position;                   // of the use in progress; kNever: before the first
    uint32_t slots;                      // of the tier
    uint32_t occupied_slots;             // by gradients, at this moment
    std::span<const ChunkId> in_use;     // ascending
    std::span<const ChunkId> residents;  // ascending, each once: all that have a slot, those in use included
  };
  struct Fetch {
    ChunkId chunk;
    uint32_t position;  // of the use that it is for
  };

  explicit FetchAhead(uint32_t chunk_count) : entry_of_(chunk_count, kNone) {}

  // Of the next `uses` uses, without wrapping. `can_fetch` says which chunks have parameters to be fetched.
  void plan(const Now& now, uint32_t uses, FunctionRef<bool(ChunkId)> can_fetch);
  // What may be fetched now, in the order of need.
  std::span<const Fetch> fetches() const { return fetches_; }
  // Residents that the rule evicts before they are used again, in its order: what may leave for the fetches.
  std::span<const ChunkId> victims() const { return victims_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // A chunk's stay. Times count uses from now, which is 0.
  struct Entry {
    ChunkId chunk;
    uint32_t next_use;  // kNever: none
    uint32_t came;
    uint32_t last_use;     // before it is gone, where it is used at all
    uint32_t fetched_for;  // the time of the use that it comes for; 0: it was here
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
  uint32_t end_ = 0;    // one behind the last time
  uint32_t held_ = 0;
  std::vector<uint32_t> entry_of_;  // per chunk
  std::vector<Entry> entries_;
  std::vector<Candidate> heap_;
  std::vector<uint32_t> kept_;  // per time: chunks whose stay is worth it
  std::vector<Fetch> fetches_;
  std::vector<ChunkId> victims_;
};

}  // namespace terrace
