// The least traffic of a training step for the budgets of a plan.
#include <terrace/offload/offloader_parts.h>

#include <algorithm>

namespace terrace {
namespace {

// Belady's rule over one step that begins with an empty device: the fewest fetches for equal chunks when
// every slot could hold parameters. Calls on_fetch(chunk) for each.
template <typename OnFetch>
void fewest_fetches(const Schedule& schedule, uint32_t slots, OnFetch on_fetch) {
  std::vector<ChunkId> held;
  for (uint32_t position = 0; position < schedule.size(); ++position) {
    const ScheduledUse& use = schedule.use(position);
    for (const ChunkId chunk : use.chunks) {
      if (std::find(held.begin(), held.end(), chunk) != held.end()) continue;
      on_fetch(chunk);
      if (held.size() >= slots) {
        auto farthest = held.end();
        uint32_t distance = 0;
        for (auto it = held.begin(); it != held.end(); ++it) {
          if (std::binary_search(use.chunks.begin(), use.chunks.end(), *it)) continue;
          const uint32_t next = schedule.distance_within_step(*it, position);
          if (farthest == held.end() || next > distance) farthest = it, distance = next;
        }
        if (farthest != held.end()) held.erase(farthest);
      }
      held.push_back(chunk);
    }
  }
}

}  // namespace

TrafficBound Offloader::traffic_bound() const {
  const Parts& p = *parts_;
  TrafficBound bound;
  const bool params_move = p.home->placement() != Placement::none;
  const bool states_move = p.records->placement() != Placement::none;
  for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
    if (!p.space.section_of(ChunkId{c}).trainable) continue;
    const uint64_t bytes = p.home->param_bytes(ChunkId{c});
    if (states_move) bound.d2h_bytes += bytes * p.options.accumulation_steps;
    if (!states_move && params_move) bound.d2h_bytes += bytes;
    if (states_move && !params_move) bound.h2d_bytes += bytes;
    if (!p.home->is_in_memory(ChunkId{c})) bound.param_write_bytes += bytes;
  }
  bound.record_read_bytes = bound.record_write_bytes = p.records->streamed_bytes();
  if (!params_move) return bound;
  fewest_fetches(p.training_cursor.schedule(), p.cache.slot_count(), [&](ChunkId chunk) {
    bound.h2d_bytes += p.home->param_bytes(chunk);
    if (!p.home->is_in_memory(chunk)) bound.param_read_bytes += p.home->param_bytes(chunk);
  });
  return bound;
}

}  // namespace terrace
