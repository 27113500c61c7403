#include <terrace/offload/plan/least_fetches.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <terrace/sim/cost_flow.h>

namespace terrace {
namespace {

constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

// Row: the uses of several steps in a row, where a position is step * uses + use. A position's room is the
// slots beside its own chunks; the edge from its node to the next carries the room that is not used.
class Row {
 public:
  Row(const Schedule& schedule, uint32_t slots, uint32_t chunk_count, uint32_t steps, const FetchCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        positions_(schedule.size() * steps),
        flow_(positions_ + 1),
        last_use_(chunk_count, kNowhere) {
    int64_t before = 0;
    for (uint32_t p = 0; p <= positions_; ++p) {
      int64_t room = 0;
      if (p < positions_) {
        const ScheduledUse& use = schedule.use(p % schedule.size());
        room = std::max<int64_t>(
            int64_t{slots} - use.occupied_slots - static_cast<int64_t>(use.chunks.size()), 0);
        flow_.add_edge(p, p + 1, int64_t{slots}, 0);
      }
      flow_.set_supply(p, room - before);
      before = room;
    }
  }

  uint64_t least_cost() {
    for (uint32_t p = 0; p < positions_; ++p) {
      for (const ChunkId chunk : schedule_.use(p % schedule_.size()).chunks) add_use(chunk, p);
    }
    flow_.solve();  // a solution exists: every slot may stay empty
    for (const Stay& stay : stays_) {
      if (flow_.flow_of(stay.edge) > 0) cost_ -= stay.saves;
    }
    return cost_;
  }

 private:
  struct Stay {
    uint32_t edge;
    uint64_t saves;
  };

  void add_use(ChunkId chunk, uint32_t position) {
    const uint32_t before = last_use_[index_of(chunk)];
    const uint32_t step = position / schedule_.size();
    const bool is_first = before == kNowhere || before / schedule_.size() < step;
    last_use_[index_of(chunk)] = position;
    const uint64_t cost = costs_.cost(chunk, is_first);
    const AfterStep after = costs_.after_step(chunk);
    if (is_first && after == AfterStep::renewed) {
      cost_ += cost;
      return;
    }
    // A stay takes a slot at every position between the two uses, or from the beginning on if there is no
    // earlier use.
    uint32_t from = before == kNowhere ? 0 : before + 1;
    if (is_first && after == AfterStep::made) from = step * schedule_.size();
    if (from == position) return;
    cost_ += cost;
    if (cost > 0) stays_.push_back({flow_.add_edge(from, position, 1, -static_cast<int64_t>(cost)), cost});
  }

  const Schedule& schedule_;
  const FetchCosts& costs_;
  const uint32_t positions_;
  sim::CostFlow flow_;
  std::vector<uint32_t> last_use_;
  std::vector<Stay> stays_;
  uint64_t cost_ = 0;
};

}  // namespace

uint64_t least_fetch_cost(const Schedule& schedule, uint32_t slots, uint32_t chunk_count, uint32_t steps,
                          const FetchCosts& costs) {
  if (schedule.empty()) return 0;
  return Row(schedule, slots, chunk_count, steps, costs).least_cost() / steps;
}

}  // namespace terrace
