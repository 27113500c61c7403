// Owners of the driver's objects for CudaDevice: addresses, physical memory, streams and events. A
// constructor makes the whole object or throws; a destructor gives it back and must never wait for anything
// else. The caller has the GPU's context.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/cuda/internal/cuda_driver.h>

namespace terrace {

// The properties of physical memory of the GPU `device`, which is not shared.
inline CUmemAllocationProp cuda_allocation_properties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

inline CUdeviceptr cuda_pointer(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(address));
}

// The GPU's context for what follows in a destructor. Where it cannot be had there is a warning: the end of
// the process frees what the calls of that destructor then cannot.
class CudaContextAtEnd {
 public:
  explicit CudaContextAtEnd(const CudaGpu& gpu) {
    try {
      context_.emplace(gpu);
    } catch (const Error& error) {
      gpu.log().warning_once(error);
    }
  }

 private:
  std::optional<CudaContext> context_;
};

// Address space, 2 MiB aligned.
class CudaAddresses {
 public:
  CudaAddresses(const CudaGpu& gpu, uint64_t bytes, const std::string& subject);
  ~CudaAddresses();
  CudaAddresses(CudaAddresses&& other) noexcept
      : gpu_(other.gpu_), memory_(std::exchange(other.memory_, {})) {}
  CudaAddresses& operator=(CudaAddresses&&) = delete;
  std::span<std::byte> memory() const { return memory_; }

 private:
  const CudaGpu& gpu_;
  std::span<std::byte> memory_;
};

// Makes `handle` readable and writable for the GPU at [address, address + bytes); undone by unmap.
void cuda_map(const CudaGpu& gpu, std::byte* address, uint64_t bytes, CUmemGenericAllocationHandle handle,
              const std::string& subject);

// Physical memory with a permanent mapping at `home`.
class CudaPiece {
 public:
  CudaPiece(const CudaGpu& gpu, std::byte* home, uint64_t bytes, const std::string& subject);
  ~CudaPiece();
  CudaPiece(CudaPiece&& other) noexcept
      : gpu_(other.gpu_),
        home_(std::exchange(other.home_, nullptr)),
        bytes_(other.bytes_),
        handle_(other.handle_) {}
  CudaPiece& operator=(CudaPiece&&) = delete;
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  const CudaGpu& gpu_;
  std::byte* home_;
  uint64_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
};

class CudaStream {
 public:
  CudaStream(const CudaGpu& gpu, const std::string& subject);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  CUstream get() const { return stream_; }

 private:
  const CudaGpu& gpu_;
  CUstream stream_ = nullptr;
};

// An event without timing, which makes recording cheaper. Threads that wait for it sleep.
class CudaEvent {
 public:
  CudaEvent(const CudaGpu& gpu, const std::string& subject);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept : gpu_(other.gpu_), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;
  CUevent get() const { return event_; }

 private:
  const CudaGpu& gpu_;
  CUevent event_ = nullptr;
};

}  // namespace terrace
