// CudaUnmapper: takes detached slots away from their flat addresses, behind the owner's back. Unmapping is
// not in the order of any stream, so it has to wait for the operations that use the addresses, and its cost
// is not known before it is measured; a thread of its own keeps both out of the step. It must never unmap
// what an operation may still use, nor let an address be mapped that it has not unmapped yet.
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
    // Recorded behind the last use. Ranges come in the order of one stream, so that what is waiting is
    // unmapped as one batch behind the event of its last range. An event that is recorded anew meanwhile only
    // makes the batch wait longer.
    CUevent last_use;
    const std::string* subject;
  };
  // When as many ranges wait, add() blocks.
  static constexpr size_t kMaxWaiting = 64;

  explicit CudaUnmapper(const CudaGpu& gpu);
  // Unmaps what waits.
  ~CudaUnmapper();
  CudaUnmapper(const CudaUnmapper&) = delete;
  CudaUnmapper& operator=(const CudaUnmapper&) = delete;

  // Both are the owner's thread's, allocate nothing, and rethrow the first failure, again and again: from
  // then on it is not known what is mapped.
  void add(const Range& range);
  // Returns when nothing of these addresses waits.
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
