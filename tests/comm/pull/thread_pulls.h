// ThreadPulls: the pulls of ranks that are threads of one process, for tests. Each rank that pulls has a
// thread, which copies from memory to memory and sleeps while there is nothing to do.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/comm/pull/pulls.h>

namespace terrace {

class ThreadPulls {
 public:
  // `failed` is called where a rank cannot go on, by its thread; it calls lose(), then or later.
  ThreadPulls(uint32_t ranks, std::function<void(uint32_t rank, const std::exception_ptr&)> failed);
  ~ThreadPulls();
  ThreadPulls(const ThreadPulls&) = delete;
  ThreadPulls& operator=(const ThreadPulls&) = delete;

  // Those of a rank, made at the first call; they live as long as this. Thread-safe.
  Pulls& rank(uint32_t rank);
  // All pulls of all ranks fail. The first failure counts. Thread-safe.
  void lose(const std::exception_ptr& failure);

 private:
  class Side;
  Side& side(uint32_t rank);

  const uint32_t ranks_;
  const std::function<void(uint32_t, const std::exception_ptr&)> failed_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Side>> sides_ TERRACE_GUARDED_BY(mutex_);
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
