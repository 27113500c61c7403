// CudaUnmapper: takes detached slots away from their flat addresses, behind the owner's back. Unmapping is
// not in the order of any stream, so it has to wait for the operations that use the addresses, and its cost
// is not known before it is measured; a thread of its own keeps both out of the step. It must never unmap
// memory that an operation may still use, nor let an address be mapped that it has not unmapped yet.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>

namespace terrace {

class CudaUnmapper {
 public:
  struct Range {
    std::byte* address;
    uint64_t bytes;
    // This event is recorded behind the last use. Ranges come in the order of one stream, so all that wait
    // are unmapped as one batch behind the event of the last one. An event that is recorded anew meanwhile
    // only makes the batch wait longer.
    CUevent last_use;
    const std::string* subject;
  };
  // add() blocks while so many ranges wait.
  static constexpr size_t kMaxWaiting = 64;

  explicit CudaUnmapper(const CudaGpu& gpu);
  // Unmaps the ranges that wait.
  ~CudaUnmapper();
  CudaUnmapper(const CudaUnmapper&) = delete;
  CudaUnmapper& operator=(const CudaUnmapper&) = delete;

  // The owner's thread calls add() and wait_for(). They allocate nothing. Both rethrow the first failure
  // every time, because from then on it is not known what is mapped.
  void add(const Range& range);
  // Returns when no range at these addresses waits.
  void wait_for(const std::byte* address, uint64_t bytes);

 private:
  void run();
  void unmap(const std::vector<Range>& batch);

  const CudaGpu& gpu_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Range> waiting_ TERRACE_GUARDED_BY(mutex_);  // the batch at work first
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
