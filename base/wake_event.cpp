#include <terrace/base/wake_event.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include <terrace/base/error.h>

namespace terrace {

WakeEvent::WakeEvent(const std::string& action, const std::string& advice)
    : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw Error(ErrorKind::io, {action, "eventfd", system_reason(errno), advice});
}

WakeEvent::~WakeEvent() {
  close(fd_);
}

void WakeEvent::wake() const {
  const uint64_t one = 1;
  if (write(fd_, &one, sizeof one) < 0) {
    // Its counter is full: it is readable already.
  }
}

bool WakeEvent::take() const {
  uint64_t count = 0;
  return read(fd_, &count, sizeof count) == static_cast<ssize_t>(sizeof count);
}

}  // namespace terrace
