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
    : watch_(watch), communicator_(communicator), thread_([this] { run(); }) {}

MutualWaitThread::~MutualWaitThread() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stop_asked_.notify_all();
  thread_.join();
}

void MutualWaitThread::run() {
  while (!stops_in_a_second()) {
    if (std::optional<std::string> why = watch_.mutual_wait()) return communicator_.leave(std::move(*why));
  }
}

bool MutualWaitThread::stops_in_a_second() {
  mutex_.lock();
  if (!stop_) stop_asked_.wait_for(mutex_, std::chrono::seconds(1));
  const bool stops = stop_;
  mutex_.unlock();
  return stops;
}

}  // namespace terrace
