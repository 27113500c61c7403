// WakeEvent: wakes a thread that waits for descriptors.
#pragma once

#include <string>

namespace terrace {

class WakeEvent {
 public:
  // `action` is what needs it ("cannot watch the other ranks"), and `advice` what the user may do where the
  // system has none left. Throws Error(io).
  WakeEvent(const std::string& action, const std::string& advice);
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  // Readable once there was a wake() that nobody has taken.
  int fd() const { return fd_; }
  // Thread-safe.
  void wake() const;
  // Takes every wake() so far, and returns whether there was one.
  bool take() const;

 private:
  const int fd_;
};

}  // namespace terrace
