#include <terrace/runtime/ranks/mutual_wait.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/runtime/ranks/rank_watch.h>

namespace terrace {

bool MutualWait::look(std::span<const KnownStanding> all, Moment now) {
  const bool all_wait = !all.empty() && std::ranges::all_of(all, [](const KnownStanding& one) {
    return one.standing.waits_for_ranks && one.age <= kSilent;
  });
  if (!all_wait) {
    since_.reset();
    return false;
  }
  std::vector<uint64_t> operations;
  for (const KnownStanding& one : all)
    operations.insert(operations.end(), one.standing.operations.begin(), one.standing.operations.end());
  if (!since_ || operations != operations_) {
    operations_ = std::move(operations);
    since_ = now;
  }
  return now - *since_ >= kPatience;
}

MutualWaitThread::MutualWaitThread(RankWatch& watch, Communicator& communicator)
    : thread_(std::chrono::seconds(1), [&watch, &communicator] {
        std::optional<std::string> why = watch.mutual_wait();
        if (!why) return true;
        communicator.leave(std::move(*why));
        return false;
      }) {}

}  // namespace terrace
