// ThreadWorld: ranks that are threads of one process. Parts are copied from memory to memory; each rank's
// lanes have threads of their own, which sleep while nothing is asked for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

class ThreadPulls;

struct ThreadWorldOptions {
  uint32_t ranks = 1;
  uint32_t hosts = 1;         // among which the places of the ranks are divided; divides them
  uint32_t queue_depth = 64;  // operations of a lane of a rank that may wait
  CommHook* hook = nullptr;   // outlives the world
};

class ThreadWorld {
 public:
  explicit ThreadWorld(ThreadWorldOptions options);
  // What still waits fails.
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  uint32_t size() const;
  // The communicator of a rank; lives as long as the world.
  Communicator& rank(uint32_t rank);
  // The rank takes part in nothing from now on: every operation of all ranks fails that is not over, and
  // every later one, and names it. The first loss counts. Thread-safe.
  void lose(uint32_t rank, std::string why);

 private:
  class Meeting;
  class Rank;
  // Where the ranks of a group meet in a lane.
  Meeting& meeting_of(Lane lane, const RankGroup& group);

  Mutex mutex_;
  // Made when the first rank comes.
  std::map<std::pair<Lane, RankGroup>, std::unique_ptr<Meeting>> meetings_ TERRACE_GUARDED_BY(mutex_);
  std::optional<std::pair<uint32_t, std::string>> lost_ TERRACE_GUARDED_BY(mutex_);  // the rank, and why
  std::vector<std::unique_ptr<Rank>> ranks_;
  const std::unique_ptr<ThreadPulls> pulls_;
};

}  // namespace terrace
