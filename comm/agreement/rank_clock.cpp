#include <terrace/comm/agreement/rank_clock.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <terrace/comm/agreement/rank_votes.h>

namespace terrace {
namespace {

constexpr size_t kBallots = 8;

struct Moment {
  uint64_t before_ns = 0;
  uint64_t after_ns = 0;
};
using Moments = std::array<Moment, kBallots>;

int64_t difference(uint64_t later, uint64_t earlier) {
  return static_cast<int64_t>(later - earlier);
}

}  // namespace

// No ballot is over anywhere before it has begun everywhere. So every ballot bounds by how much this clock is
// ahead of the other, from both sides.
FirstClock clock_of_first(Communicator& ranks, const Clock& clock) {
  const RankVotes votes(&ranks);
  Moments mine;
  for (Moment& moment : mine) {
    moment.before_ns = clock.now_ns();
    votes.any(false);
    moment.after_ns = clock.now_ns();
  }
  const std::vector<Moments> all = votes.of_all(mine);
  const Moments& first = all.front();
  const uint64_t first_ns = first.back().after_ns;
  if (ranks.places()[ranks.rank()].host == ranks.places()[0].host) return {first_ns, 0};
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t b = 0; b < kBallots; ++b) {
    least = std::max(least, difference(mine[b].before_ns, first[b].after_ns));
    most = std::min(most, difference(mine[b].after_ns, first[b].before_ns));
  }
  const int64_t half = (most - least) / 2;
  return {first_ns + static_cast<uint64_t>(least + half), static_cast<uint64_t>(half)};
}

}  // namespace terrace
