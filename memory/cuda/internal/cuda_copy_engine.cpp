#include <terrace/memory/cuda/internal/cuda_copy_engine.h>

#include <algorithm>
#include <array>

namespace terrace {

CudaOrder& CudaOrderPool::take() {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<CudaOrder>(gpu_, "work memory (device tier)", true));
    free_.reserve(all_.size());  // so that give_back() allocates nothing
    return *all_.back();
  }
  CudaOrder& order = *free_.back();
  free_.pop_back();
  return order;
}

void CudaOrderPool::give_back(CudaOrder& order) noexcept {
  const MutexLock lock(mutex_);
  free_.push_back(&order);
}

CudaCopyEngine::CudaCopyEngine(const CudaGpu& gpu, Direction direction, uint64_t host_piece_bytes,
                               CudaOrderPool& orders)
    : gpu_(gpu),
      direction_(direction),
      host_piece_bytes_(host_piece_bytes),
      orders_(orders),
      stream_(gpu, "a copy stream (device tier)") {
  over_.reserve(kDepth);
  for (uint32_t place = 0; place < kDepth; ++place) over_.emplace_back(gpu, "a copy stream (device tier)");
}

std::exception_ptr CudaCopyEngine::start(const CopyTask& task, uint32_t place) noexcept {
  try {
    const CudaContext context(gpu_);
    put_on_stream(task, place);
    return nullptr;
  } catch (...) {
    let_go(task);
    return std::current_exception();
  }
}

void CudaCopyEngine::put_on_stream(const CopyTask& task, uint32_t place) {
  const CudaDriver& driver = gpu_.driver();
  const auto& order = *static_cast<const CudaOrder*>(task.for_engine);
  driver.check(driver.stream_wait_event(stream_.get(), order.event.get(), 0), "cuStreamWaitEvent",
               order.subject);
  try {
    copy(task, order.subject);
    driver.check(driver.event_record(over_[place].get(), stream_.get()), "cuEventRecord", order.subject);
  } catch (...) {
    // Copies that are on the stream already still use the host memory.
    gpu_.report(driver.stream_synchronize(stream_.get()), "cuStreamSynchronize", order.subject);
    throw;
  }
}

void CudaCopyEngine::copy(const CopyTask& task, const std::string& subject) {
  if (task.bytes == 0) return;
  const CudaDriver& driver = gpu_.driver();
  if (direction_ == Direction::within)
    return driver.check(driver.copy_on_device(cuda_pointer(task.destination), cuda_pointer(task.source),
                                              task.bytes, stream_.get()),
                        "cuMemcpyDtoDAsync", subject);
  const bool to_device = direction_ == Direction::to_device;
  const std::byte* const host = to_device ? task.source : task.destination;
  for (uint64_t offset = 0; offset < task.bytes;) {
    const uint64_t to_cut =
        host_piece_bytes_ - reinterpret_cast<uintptr_t>(host + offset) % host_piece_bytes_;
    const uint64_t bytes = std::min(task.bytes - offset, to_cut);
    if (to_device) {
      driver.check(driver.copy_to_device(cuda_pointer(task.destination + offset), task.source + offset, bytes,
                                         stream_.get()),
                   "cuMemcpyHtoDAsync", subject);
    } else {
      driver.check(driver.copy_to_host(task.destination + offset, cuda_pointer(task.source + offset), bytes,
                                       stream_.get()),
                   "cuMemcpyDtoHAsync", subject);
    }
    offset += bytes;
  }
}

std::exception_ptr CudaCopyEngine::finish(const CopyTask& task, uint32_t place) noexcept {
  std::exception_ptr failure;
  try {
    const CudaContext context(gpu_);
    constexpr std::array kCalls = {"cuEventSynchronize after a copy to the GPU",
                                   "cuEventSynchronize after a copy to the host",
                                   "cuEventSynchronize after a copy within the GPU"};
    gpu_.driver().check(gpu_.driver().event_synchronize(over_[place].get()),
                        kCalls[static_cast<size_t>(direction_)],
                        static_cast<const CudaOrder*>(task.for_engine)->subject);
  } catch (...) {
    failure = std::current_exception();
  }
  let_go(task);
  return failure;
}

void CudaCopyEngine::let_go(const CopyTask& task) noexcept {
  auto& order = *static_cast<CudaOrder*>(task.for_engine);
  if (order.pooled) orders_.give_back(order);
}

}  // namespace terrace
