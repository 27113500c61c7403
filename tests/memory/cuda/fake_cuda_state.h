// What the calls of the fake CUDA driver share; included by their sources alone.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>

#include <terrace/base/assert.h>
#include <terrace/memory/host/pages.h>

#include "fake_cuda_driver.h"

namespace terrace::testing {

// One recording of an event.
struct Mark {
  bool reached = false;
};

struct FakeEvent {
  std::shared_ptr<Mark> last;  // null before the first
};

struct FakeStream {
  std::deque<std::function<void()>> queue;
  bool busy = false;
  bool stop = false;
  std::thread thread;
};

struct Mapping {
  uint64_t bytes;
  CUmemGenericAllocationHandle handle;
  bool accessible;
};

struct Handle {
  int device;
  int file;
  uint64_t bytes;
  bool released;
  uint64_t mappings;
};

struct Failure {
  uint64_t left;
  CUresult result;
};

struct FakeCudaDriver::State {
  explicit State(FakeCudaOptions options_) : options(options_) {}

  const FakeCudaOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  bool lost = false;
  CUresult sticky = CUDA_SUCCESS;  // an illegal access
  bool hold = false;
  uint64_t operations_released = 0;
  std::map<std::string, uint64_t> call_counts;
  std::map<std::string, Failure> failures;
  std::map<uint64_t, PageMapping> reservations;
  std::map<uint64_t, Mapping> mappings;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  CUmemGenericAllocationHandle next_handle = 1;
  uint64_t used_bytes = 0;
  std::map<uint64_t, uint64_t> registered;  // address, bytes
  uint64_t largest_registration = 0;
  std::set<FakeStream*> streams;
  std::set<FakeEvent*> events;
  int contexts = 0;

  bool is_accessible(uint64_t address, uint64_t bytes) const {
    while (bytes > 0) {
      auto next = mappings.upper_bound(address);
      if (next == mappings.begin()) return false;
      const auto& [begin, mapping] = *--next;
      if (address >= begin + mapping.bytes || !mapping.accessible) return false;
      const uint64_t inside = std::min(bytes, begin + mapping.bytes - address);
      address += inside;
      bytes -= inside;
    }
    return true;
  }
  // Real drivers refuse a copy that begins in one registration and ends in another or in none.
  bool crosses_registrations(uint64_t host, uint64_t bytes) const {
    for (const auto& [begin, size] : registered) {
      const bool meets = host < begin + size && begin < host + bytes;
      const bool inside = host >= begin && host + bytes <= begin + size;
      if (meets && !inside) return true;
    }
    return false;
  }
  CUresult health() const { return lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : sticky; }
};

using Lock = std::unique_lock<std::mutex>;

extern FakeCudaDriver::State* current;
extern thread_local int pushed_contexts;

// Begins every call: counts it, and says why it fails if it shall.
CUresult enter(const char* call, const Lock& lock);

#define ENTER(call)          \
  Lock lock(current->mutex); \
  if (const CUresult entered = enter(call, lock); entered != CUDA_SUCCESS) return entered

// Waits until the condition holds or the device is gone; takes the lock by itself.
template <typename Condition>
void wait_on_stream(Condition condition) {
  Lock lock(current->mutex);
  current->changed.wait(lock, [&] { return condition() || current->lost; });
}

// Appends to the queue of a stream; the caller has the lock.
void put(CUstream stream, std::function<void()> work);

inline void* pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

#define TERRACE_FAKE(member, name, symbol) std::remove_pointer_t<decltype(CudaDriver::member)> fake_##member;
TERRACE_CUDA_CALLS(TERRACE_FAKE)
#undef TERRACE_FAKE

}  // namespace terrace::testing
