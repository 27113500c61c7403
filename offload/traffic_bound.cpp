// The least traffic of a training step for the budgets of a plan.
#include <terrace/offload/offloader_parts.h>

#include <algorithm>
#include <vector>

namespace terrace {
namespace {

// Belady's rule for equal chunks over a row of steps that begins with an empty device, in the slots that
// gradients leave. Where the host's update changes parameters they are worthless once the step has used them
// for the last time; what is frozen, or updated where it is, stays for the next step.
class FewestFetches {
 public:
  FewestFetches(const FlatSpace& space, const Schedule& schedule, uint32_t slots, bool updated_in_place)
      : space_(space), schedule_(schedule), slots_(slots), updated_in_place_(updated_in_place) {}

  // One more step; calls on_fetch(chunk) for each.
  template <typename OnFetch>
  void step(OnFetch on_fetch) {
    for (uint32_t position = 0; position < schedule_.size(); ++position) {
      const ScheduledUse& use = schedule_.use(position);
      for (const ChunkId chunk : use.chunks) {
        if (std::find(held_.begin(), held_.end(), chunk) != held_.end()) continue;
        on_fetch(chunk);
        held_.push_back(chunk);
      }
      const uint32_t room = slots_ - std::min(slots_, use.occupied_slots);
      while (held_.size() > room && evict(use, position)) {
      }
    }
    if (!updated_in_place_)
      std::erase_if(held_, [&](ChunkId chunk) { return space_.section_of(chunk).trainable; });
  }

 private:
  bool evict(const ScheduledUse& use, uint32_t position) {
    auto farthest = held_.end();
    uint32_t distance = 0;
    for (auto it = held_.begin(); it != held_.end(); ++it) {
      if (std::binary_search(use.chunks.begin(), use.chunks.end(), *it)) continue;
      const uint32_t next = schedule_.distance_to_next_use(*it, position);
      if (farthest == held_.end() || next > distance) farthest = it, distance = next;
    }
    if (farthest == held_.end()) return false;
    held_.erase(farthest);
    return true;
  }

  const FlatSpace& space_;
  const Schedule& schedule_;
  const uint32_t slots_;
  const bool updated_in_place_;
  std::vector<ChunkId> held_;
};

}  // namespace

TrafficBound Offloader::traffic_bound() const {
  const Parts& p = *parts_;
  TrafficBound bound;
  uint64_t old_read_bytes = 0;
  const bool params_move = p.home->placement() != Placement::none;
  const bool states_move = p.records->placement() != Placement::none;
  for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
    if (!p.space.section_of(ChunkId{c}).trainable) continue;
    const uint64_t bytes = p.home->param_bytes(ChunkId{c});
    if (states_move) bound.d2h_bytes += bytes * p.options.accumulation_steps;
    if (!states_move && params_move) bound.d2h_bytes += bytes;
    if (states_move && !params_move) bound.h2d_bytes += bytes;
    if (!p.gradients->is_held(ChunkId{c})) {
      // Written in every micro-batch, read in every later one and by the update. Where micro-batches are
      // open together it waits for the last.
      const uint32_t passes = p.options.layer_major ? 1 : p.options.accumulation_steps;
      const uint64_t held_bytes =
          p.space.chunk(ChunkId{c}).elements * bytes_of(p.gradients->type(ChunkId{c}));
      bound.gradient_write_bytes += held_bytes * passes;
      bound.gradient_read_bytes += held_bytes * passes;
    }
    const bool has_old_parameters = p.is_compact() && states_move;  // an input of the update
    if (has_old_parameters && !params_move) bound.d2h_bytes += bytes;
    if (p.home->is_in_memory(ChunkId{c})) continue;
    bound.param_write_bytes += bytes;
    if (has_old_parameters) old_read_bytes += bytes;
  }
  bound.record_read_bytes = bound.record_write_bytes = p.records->streamed_bytes();
  if (!params_move) return bound;
  // The first step fills the device; where something stays the steps after it need less, on average over a
  // few.
  const bool all_leave = states_move && std::all_of(p.space.sections().begin(), p.space.sections().end(),
                                                    [](const Section& section) { return section.trainable; });
  const uint32_t counted = all_leave ? 1 : 3;
  FewestFetches fewest(p.space, p.training_cursor.schedule(), p.cache.slot_count(), !states_move);
  if (!all_leave) fewest.step([](ChunkId) {});
  uint64_t fetched_bytes = 0, read_bytes = 0;
  // Where an update runs in the next forward, what it makes goes to the device from host memory.
  const bool comes_fresh = p.update_mode == UpdateMode::next_forward;
  std::vector<bool> is_here(p.space.chunk_count());
  for (uint32_t step = 0; step < counted; ++step) {
    std::fill(is_here.begin(), is_here.end(), false);
    fewest.step([&](ChunkId chunk) {
      fetched_bytes += p.home->param_bytes(chunk);
      const bool is_first = !is_here[index_of(chunk)];
      is_here[index_of(chunk)] = true;
      if (p.home->is_in_memory(chunk)) return;
      if (comes_fresh && is_first && p.space.section_of(chunk).trainable && p.gradients->is_held(chunk))
        return;
      read_bytes += p.home->param_bytes(chunk);
    });
  }
  bound.h2d_bytes += fetched_bytes / counted;
  bound.param_read_bytes = read_bytes / counted + old_read_bytes;
  return bound;
}

}  // namespace terrace
