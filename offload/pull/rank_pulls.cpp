#include <terrace/offload/pull/rank_pulls.h>

#include <fmt/format.h>

#include <terrace/base/error.h>

namespace terrace {
namespace {

// In the last word of what is handed over, where the number of a step is: the first word says how many steps
// the rank has begun, which makes no more.
constexpr uint64_t kEndOfSteps = UINT64_MAX;

}  // namespace

RankPulls::~RankPulls() {
  if (!has_begun_) return;
  ranks_.leave("it ends before its training does");
  pulls_.end();
}

void RankPulls::begin() {
  pulls_.begin(*this);
  has_begun_ = true;
}

void RankPulls::end() {
  if (!has_begun_) return;
  has_begun_ = false;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    pulls_.hand_over(rank, {step_.load(), 0, 0, kEndOfSteps}, {}, nullptr, nullptr);
  pulls_.end();
}

// One of the two sees the other: the step counts before the other rank's are read, and these before it is.
void RankPulls::begin_step() {
  if (step_.fetch_add(1) < least_.load()) return;
  throw Error(ErrorKind::peer, {"cannot begin a step with", fmt::format("rank {}", ended_.load()),
                                "it has ended its training", "let all ranks make as many steps"});
}

void RankPulls::hear(const HandedOver& part) {
  if (part.words[3] != kEndOfSteps) return parts_->hear(part);
  if (part.words[0] >= least_.load()) return;
  ended_.store(part.from);
  least_.store(part.words[0]);
  if (step_.load() > part.words[0])
    ranks_.leave(fmt::format("rank {} has ended its training after {} steps, and this one makes another",
                             part.from, part.words[0]));
}

}  // namespace terrace
