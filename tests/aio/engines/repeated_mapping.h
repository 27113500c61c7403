// More addresses than there is memory: all are the same 2 MiB, but the last 2 MiB, which are their own. For
// requests of several GiB.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include <terrace/base/units.h>

namespace terrace::io {

class RepeatedMapping {
 public:
  explicit RepeatedMapping(uint64_t bytes)
      : bytes_(round_up(bytes, kPeriod)), fd_(memfd_create("repeated", 0)) {
    if (ftruncate(fd_, kPeriod) != 0) throw std::runtime_error("ftruncate");
    void* base = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::runtime_error("mmap");
    data_ = static_cast<std::byte*>(base);
    for (uint64_t offset = 0; offset + kPeriod < bytes_; offset += kPeriod) {
      void* part = mmap(data_ + offset, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0);
      if (part == MAP_FAILED) throw std::runtime_error("mmap");
    }
    if (mprotect(data_ + bytes_ - kPeriod, kPeriod, PROT_READ | PROT_WRITE) != 0)
      throw std::runtime_error("mprotect");
  }
  ~RepeatedMapping() {
    munmap(data_, bytes_);
    close(fd_);
  }
  RepeatedMapping(const RepeatedMapping&) = delete;
  RepeatedMapping& operator=(const RepeatedMapping&) = delete;
  std::span<std::byte> span(uint64_t bytes) const { return {data_, bytes}; }

  static constexpr uint64_t kPeriod = 2 * kMiB;

 private:
  uint64_t bytes_;
  int fd_;
  std::byte* data_ = nullptr;
};

}  // namespace terrace::io
