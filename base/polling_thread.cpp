#include <terrace/base/polling_thread.h>

#include <utility>

namespace terrace {

PollingThread::PollingThread(std::chrono::milliseconds pause, std::function<bool()> look,
                             std::function<void()> begin)
    : look_(std::move(look)), begin_(std::move(begin)), thread_([this, pause] { run(pause); }) {}

PollingThread::~PollingThread() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  end_asked_.notify_one();
  thread_.join();
}

void PollingThread::run(std::chrono::milliseconds pause) {
  if (begin_) begin_();
  while (!ends_in(pause) && look_()) {
  }
}

bool PollingThread::ends_in(std::chrono::milliseconds pause) {
  const MutexLock lock(mutex_);
  if (!ends_) end_asked_.wait_for(mutex_, pause);
  return ends_;
}

}  // namespace terrace
