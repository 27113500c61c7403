// CudaCopyEngine: one direction of the link to a GPU, or copies within it, as a CopyStream drives them. It
// must never decide what is copied or when: it puts copies on a stream of its own and says when they are
// over.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>
#include <terrace/memory/device/copy_stream.h>

namespace terrace {

// CudaOrder: a copy with this order runs on the GPU behind everything that the stream of operations held when
// `event` was last recorded there, which may be never. `subject` is for messages of failures.
struct CudaOrder {
  CudaOrder(const CudaGpu& gpu, std::string subject_, bool pooled_)
      : event(gpu, subject_), subject(std::move(subject_)), pooled(pooled_) {}

  const CudaEvent event;
  const std::string subject;
  const bool pooled;  // belongs to a CudaOrderPool
};

// Orders of copies of work memory, which have no slot to keep theirs. The pool grows to as many as were ever
// in use at once. Thread-safe.
class CudaOrderPool {
 public:
  explicit CudaOrderPool(const CudaGpu& gpu) : gpu_(gpu) {}
  CudaOrder& take();
  void give_back(CudaOrder& order) noexcept;

 private:
  const CudaGpu& gpu_;
  Mutex mutex_;
  std::vector<std::unique_ptr<CudaOrder>> all_ TERRACE_GUARDED_BY(mutex_);
  std::vector<CudaOrder*> free_ TERRACE_GUARDED_BY(mutex_);
};

// A task's for_engine is its CudaOrder. Addresses on the GPU are homes of slots or work memory.
class CudaCopyEngine final : public CopyEngine {
 public:
  enum class Direction : uint8_t { to_device, to_host, within };
  // The most copies on the GPU's stream at once: enough that it never waits for the host between two.
  static constexpr uint32_t kDepth = 8;

  // Copies are cut where the host's address is a multiple of `host_piece_bytes` (see CudaPageLock).
  CudaCopyEngine(const CudaGpu& gpu, Direction direction, uint64_t host_piece_bytes, CudaOrderPool& orders);

  uint32_t depth() const override { return kDepth; }
  std::exception_ptr start(const CopyTask& task, uint32_t place) noexcept override;
  void skip(const CopyTask& task) noexcept override { let_go(task); }
  std::exception_ptr finish(const CopyTask& task, uint32_t place) noexcept override;

 private:
  void put_on_stream(const CopyTask& task, uint32_t place);
  void copy(const CopyTask& task, const std::string& subject);
  void let_go(const CopyTask& task) noexcept;

  const CudaGpu& gpu_;
  const Direction direction_;
  const uint64_t host_piece_bytes_;
  CudaOrderPool& orders_;
  const CudaStream stream_;
  std::vector<CudaEvent> over_;  // by place
};

}  // namespace terrace
