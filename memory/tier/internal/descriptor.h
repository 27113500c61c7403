// Descriptor: an open file that is closed when it goes out of scope. It must never be copied.
#pragma once

#include <unistd.h>

namespace terrace::tier {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }  // negative: it could not be opened, and errno says why

 private:
  int fd_;
};

}  // namespace terrace::tier
