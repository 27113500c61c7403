// The least traffic of a training step for the budgets of a plan.
#include <terrace/offload/offloader_parts.h>

#include <algorithm>

#include <terrace/offload/plan/least_fetches.h>

namespace terrace {
namespace {

// How many steps are looked at in a row where something stays on the device from one to the next: fewer of a
// long schedule, since the time that takes grows faster than their uses.
uint32_t row_of(const Schedule& schedule) {
  constexpr uint64_t kLongest = 16, kMostUses = 40'000;
  uint64_t uses = 1;
  for (const ScheduledUse& use : schedule.uses()) uses += use.chunks.size();
  return static_cast<uint32_t>(std::clamp<uint64_t>(kMostUses / uses, 1, kLongest));
}

}  // namespace

TrafficBound Offloader::traffic_bound() const {
  const bool is_next_forward = parts_->update_mode == UpdateMode::next_forward;
  return traffic_bound(is_next_forward ? StepStart::behind_update : StepStart::at_rest);
}

TrafficBound Offloader::traffic_bound(StepStart start) const {
  const Parts& p = *parts_;
  TrafficBound bound;
  uint64_t old_read_bytes = 0;
  const bool params_move = p.home->placement() != Placement::none;
  const bool states_move = p.records->placement() != Placement::none;
  for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
    if (!p.space.section_of(ChunkId{c}).trainable) continue;
    const uint64_t bytes = p.space.param_bytes(ChunkId{c});
    if (states_move) bound.d2h_bytes += bytes * p.options.accumulation_steps;
    if (!states_move && params_move) bound.d2h_bytes += bytes;
    const bool on_device = p.device_side[c];  // records and gradients pass through it
    if (on_device) {
      const uint64_t record_bytes =
          p.space.chunk(ChunkId{c}).tile_count() * p.plan.record_layout.tile_bytes();
      const uint64_t old_bytes = p.is_compact() && params_move ? bytes : 0;
      bound.h2d_bytes += record_bytes + old_bytes +
                         p.space.chunk(ChunkId{c}).elements * bytes_of(p.gradients->type(ChunkId{c}));
      bound.d2h_bytes += record_bytes + (params_move ? bytes : 0);
    }
    if (states_move && !params_move && !on_device) bound.h2d_bytes += bytes;
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
    if (has_old_parameters && !params_move && !on_device) bound.d2h_bytes += bytes;
    if (p.home->is_in_memory(ChunkId{c})) continue;
    bound.param_write_bytes += bytes;
    if (has_old_parameters) old_read_bytes += bytes;
  }
  bound.record_read_bytes = bound.record_write_bytes = p.records->streamed_bytes();
  if (!params_move) return bound;
  // An update on the device leaves the parameters where the gradients were.
  const auto after_step = [&](ChunkId chunk) {
    if (!p.space.section_of(chunk).trainable) return AfterStep::kept;
    return states_move ? AfterStep::renewed : AfterStep::made;
  };
  const bool none_is_kept = std::ranges::all_of(p.space.sections(), &Section::trainable);
  const bool comes_fresh = start == StepStart::behind_update;
  const auto read = [&](ChunkId chunk, bool is_first) -> uint64_t {
    const bool is_fresh =
        comes_fresh && is_first && p.space.section_of(chunk).trainable && p.gradients->is_held(chunk);
    return is_fresh || p.home->is_in_memory(chunk) ? 0 : p.space.param_bytes(chunk);
  };
  // What is read comes over the host's link too, but where the device reads it by itself.
  const bool past_host = p.options.reads_past_host;
  const auto copied = [&](ChunkId chunk, bool is_first) {
    return p.space.param_bytes(chunk) - (past_host ? read(chunk, is_first) : 0);
  };
  const auto least = [&](const auto& cost) {
    return least_fetch_cost(p.training_cursor.schedule(), p.cache.slot_count(), p.space.chunk_count(),
                            none_is_kept ? 1 : row_of(p.training_cursor.schedule()), {after_step, cost});
  };
  bound.h2d_bytes += least(copied);
  const uint64_t read_bytes = least(read);
  bound.direct_read_bytes = past_host ? read_bytes : 0;
  bound.param_read_bytes = read_bytes + old_read_bytes;
  return bound;
}

}  // namespace terrace
