#include <terrace/memory/cuda/internal/cuda_unmapper.h>

#include <algorithm>

namespace terrace {

CudaUnmapper::CudaUnmapper(const CudaGpu& gpu) : gpu_(gpu) {
  waiting_.reserve(kMaxWaiting);
  thread_ = std::thread([this] { run(); });
}

CudaUnmapper::~CudaUnmapper() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CudaUnmapper::add(const Range& range) {
  {
    const MutexLock lock(mutex_);
    changed_.wait(mutex_, [this] { return waiting_.size() < kMaxWaiting; });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    waiting_.push_back(range);
  }
  changed_.notify_all();
}

void CudaUnmapper::wait_for(const std::byte* address, uint64_t bytes) {
  const MutexLock lock(mutex_);
  changed_.wait(mutex_, [&] {
    return std::none_of(waiting_.begin(), waiting_.end(), [&](const Range& range) {
      return range.address < address + bytes && address < range.address + range.bytes;
    });
  });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void CudaUnmapper::run() {
  std::vector<Range> batch;
  batch.reserve(kMaxWaiting);
  while (true) {
    {
      const MutexLock lock(mutex_);
      changed_.wait(mutex_, [this] { return !waiting_.empty() || stop_; });
      if (waiting_.empty()) return;
      batch = waiting_;
    }
    std::exception_ptr failure;
    try {
      unmap(batch);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const MutexLock lock(mutex_);
      if (failure_ == nullptr) failure_ = failure;
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(batch.size()));
    }
    changed_.notify_all();
  }
}

void CudaUnmapper::unmap(const std::vector<Range>& batch) {
  const CudaContext context(gpu_);
  const CudaDriver& driver = gpu_.driver();
  const Range& last = batch.back();
  driver.check(driver.event_synchronize(last.last_use), "cuEventSynchronize before unmapping", *last.subject);
  for (const Range& range : batch) {
    // Each range takes a call of its own, because a call may not span what several calls have mapped.
    driver.check(driver.memory_unmap(cuda_pointer(range.address), range.bytes), "cuMemUnmap", *range.subject);
  }
}

}  // namespace terrace
