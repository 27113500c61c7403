// ThreadWorld: ranks that are threads of one process, for tests and for programs that train in several
// threads. Parts are copied from memory to memory; each rank's lanes have threads of their own, which sleep
// while nothing is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <terrace/comm/communicator.h>
#include <terrace/comm/operation.h>

namespace terrace {

struct ThreadWorldOptions {
  uint32_t ranks = 1;
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
  std::vector<std::unique_ptr<Meeting>> meetings_;  // by lane
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace terrace
