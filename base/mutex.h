// A mutex whose guarded members can be annotated. Clang checks the annotations; g++ ignores them.
#pragma once

#include <mutex>

#if defined(__clang__)
#define TERRACE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define TERRACE_THREAD_ATTRIBUTE(x)
#endif

#define TERRACE_GUARDED_BY(mutex) TERRACE_THREAD_ATTRIBUTE(guarded_by(mutex))
#define TERRACE_REQUIRES(...) TERRACE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

namespace terrace {

class TERRACE_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() TERRACE_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() TERRACE_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class TERRACE_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TERRACE_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TERRACE_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace terrace
