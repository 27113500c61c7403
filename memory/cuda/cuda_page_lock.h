// CudaPageLock: memory of the host that a GPU reaches directly while this lives. Copies of such memory run at
// the link's full rate beside everything else; the driver copies every byte of other memory once more. A run
// must never depend on it: where it is refused, one line says so and copies are slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/units.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/device/device.h>

namespace terrace {

// Memory is registered in pieces, cut at addresses that are multiples of this, because one call holds locks
// of the process and fails as a whole. A copy must not cross a cut, so CudaDevice cuts its copies there too.
inline constexpr uint64_t kCudaHostPieceBytes = kGiB;

class CudaPageLock final : public HostMemoryLock {
 public:
  // `memory` is whole pages and stays mapped, and none of it is given back to the system
  // (HostArena::release), while this lives. Either all of it is locked or nothing: with half of it, a run's
  // speed would depend on addresses.
  CudaPageLock(const CudaGpu& gpu, std::span<std::byte> memory, uint64_t piece_bytes = kCudaHostPieceBytes);
  // No copy of the memory may be under way.
  ~CudaPageLock() override;
  CudaPageLock(const CudaPageLock&) = delete;
  CudaPageLock& operator=(const CudaPageLock&) = delete;

  bool locked() const { return !memory_.empty(); }

 private:
  // The piece that begins at `offset` of `memory`.
  std::span<std::byte> piece_at(std::span<std::byte> memory, uint64_t offset) const;
  void release(std::span<std::byte> memory) const;

  const CudaGpu& gpu_;
  const uint64_t piece_bytes_;
  std::span<std::byte> memory_;  // empty when it was refused
};

}  // namespace terrace
