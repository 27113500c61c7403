#include <terrace/offload/device/fetch_plan.h>

#include <algorithm>

namespace terrace {
namespace {

// Returns the time of the next use after `position`, where `time` is the time at `position`.
uint32_t time_of_next_use(const Schedule& schedule, ChunkId chunk, uint32_t position, uint32_t time) {
  const uint32_t distance = schedule.distance_to_next_use(chunk, position);
  return distance == kNever ? kNever : time + distance;
}

}  // namespace

void FetchPlan::plan(const Now& now, uint32_t uses, FunctionRef<bool(ChunkId)> can_fetch) {
  now_ = &now;
  fetches_.clear();
  victims_.clear();
  entries_.clear();
  heap_.clear();
  held_ = 0;
  first_ = now.position == kNever ? 0 : now.position + 1;
  end_ = 1 + std::min(uses, now.schedule.size() - std::min(first_, now.schedule.size()));
  for (const ChunkId chunk : now.residents) {
    const bool in_use = std::binary_search(now.in_use.begin(), now.in_use.end(), chunk);
    add(chunk, 0, in_use ? 0 : time_of_next_use(now.schedule, chunk, now.position, 0), 0);
    if (!in_use) offer(entry_of_[index_of(chunk)]);
  }
  run(can_fetch);
  choose();
  for (const Entry& entry : entries_) entry_of_[index_of(entry.chunk)] = kNone;
}

// Brings every chunk one use ahead of its own if there is room, else at its use. If a use has no room for its
// chunks, the run ends before it.
void FetchPlan::run(FunctionRef<bool(ChunkId)> can_fetch) {
  for (uint32_t time = 0; time < end_; ++time) {
    if (time > 0) {
      bool fits = bring(time, time, can_fetch);
      while (fits && held_ > room(time)) fits = evict(time);
      if (!fits) {
        end_ = time;
        return;
      }
    }
    if (time + 1 < end_) bring(time, time + 1, can_fetch);
    use_up(time == 0 ? now_->in_use : std::span<const ChunkId>(use(time).chunks), time);
  }
}

// Brings at `time` the chunks that the use at `use_time` lacks. Returns false if there was no room for all.
bool FetchPlan::bring(uint32_t time, uint32_t use_time, FunctionRef<bool(ChunkId)> can_fetch) {
  for (const ChunkId chunk : use(use_time).chunks) {
    if (entry_of_[index_of(chunk)] != kNone || !can_fetch(chunk)) continue;
    if (held_ >= room(time) && !evict(use_time)) return false;
    add(chunk, time, use_time, use_time);
  }
  return true;
}

uint32_t FetchPlan::room(uint32_t time) const {
  const uint32_t occupied = time == 0 ? now_->occupied_slots : use(time).occupied_slots;
  return now_->slots - std::min(now_->slots, occupied);
}

void FetchPlan::add(ChunkId chunk, uint32_t came, uint32_t next_use, uint32_t fetched_for) {
  entry_of_[index_of(chunk)] = static_cast<uint32_t>(entries_.size());
  entries_.push_back({chunk, next_use, came, 0, fetched_for});
  ++held_;
}

// Of equal candidates the lowest chunk leaves first, as in the eviction policy.
bool FetchPlan::leaves_later(const Candidate& a, const Candidate& b) const {
  return a.next_use != b.next_use ? a.next_use < b.next_use
                                  : entries_[a.entry].chunk > entries_[b.entry].chunk;
}

void FetchPlan::offer(uint32_t entry) {
  heap_.push_back({entries_[entry].next_use, entry});
  std::push_heap(heap_.begin(), heap_.end(),
                 [this](const Candidate& a, const Candidate& b) { return leaves_later(a, b); });
}

// Evicts the chunk with the farthest next use, unless that use is at or before `before`.
bool FetchPlan::evict(uint32_t before) {
  while (!heap_.empty()) {
    const Candidate last = heap_.front();
    Entry& entry = entries_[last.entry];
    const bool is_stale = entry.is_gone || entry.next_use != last.next_use;
    if (!is_stale && last.next_use <= before) return false;
    std::pop_heap(heap_.begin(), heap_.end(),
                  [this](const Candidate& a, const Candidate& b) { return leaves_later(a, b); });
    heap_.pop_back();
    if (is_stale) continue;
    entry.is_gone = true;
    entry_of_[index_of(entry.chunk)] = kNone;
    --held_;
    if (entry.fetched_for == 0 && !entry.is_used) victims_.push_back(entry.chunk);
    return true;
  }
  return false;
}

void FetchPlan::use_up(std::span<const ChunkId> chunks, uint32_t time) {
  const uint32_t position = time == 0 ? now_->position : position_of(time);
  for (const ChunkId chunk : chunks) {
    const uint32_t index = entry_of_[index_of(chunk)];
    if (index == kNone) continue;
    entries_[index].is_used = true;
    entries_[index].last_use = time;
    entries_[index].next_use = time_of_next_use(now_->schedule, chunk, position, time);
    offer(index);
  }
}

// Fetches are chosen in the order of need, so that none waits for one that is needed later.
void FetchPlan::choose() {
  kept_.assign(end_, 0);
  for (const Entry& entry : entries_) {
    if (entry.is_gone && !entry.is_used) continue;
    const uint32_t last = entry.is_gone ? entry.last_use : end_ - 1;
    for (uint32_t time = entry.came; time <= last && time < end_; ++time) ++kept_[time];
  }
  for (const Entry& entry : entries_) {
    if (entry.fetched_for == 0) continue;
    for (uint32_t time = 0; time < entry.came; ++time) {
      if (kept_[time] >= room(time)) return;
    }
    for (uint32_t time = 0; time < entry.came; ++time) ++kept_[time];
    fetches_.push_back({entry.chunk, position_of(entry.fetched_for)});
  }
}

}  // namespace terrace
