// PollingThread: looks at something now and then, from a thread of its own, until it is destroyed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>

#include <terrace/base/mutex.h>

namespace terrace {

class PollingThread {
 public:
  // The thread calls `begin`, unless that is null, and then `look` after each pause until it returns false.
  PollingThread(std::chrono::milliseconds pause, std::function<bool()> look,
                std::function<void()> begin = nullptr);
  // Waits for the end of a look, and for no pause.
  ~PollingThread();
  PollingThread(const PollingThread&) = delete;
  PollingThread& operator=(const PollingThread&) = delete;

 private:
  void run(std::chrono::milliseconds pause);
  bool ends_in(std::chrono::milliseconds pause);

  const std::function<bool()> look_;
  const std::function<void()> begin_;
  Mutex mutex_;
  std::condition_variable_any end_asked_;
  bool ends_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace terrace
