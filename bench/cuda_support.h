// What the CUDA programs here share: errors as exceptions, the driver's calls looked up at run time, and
// owners of what the runtime hands out. It must not launch anything or know what is measured.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace terrace::bench {

inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(result) + ", " +
                           cudaGetErrorString(result));
}

// For destructors, which cannot throw: says what went wrong and goes on.
inline void report(cudaError_t result, const char* what) noexcept {
  if (result != cudaSuccess) std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
}

// ---- The driver, looked up at run time

class Driver {
 public:
  // Null when no driver is installed.
  static std::unique_ptr<Driver> open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return std::unique_ptr<Driver>(new Driver(library));
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  // The library stays loaded: the runtime uses it until the process ends.
  ~Driver() = default;

  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": " + text(result));
  }
  void report(CUresult result, const char* what) const noexcept {
    if (result != CUDA_SUCCESS) std::fprintf(stderr, "%s: %s\n", what, text(result));
  }

  decltype(&::cuGetErrorString) cuGetErrorString = nullptr;
  decltype(&::cuDeviceGet) cuDeviceGet = nullptr;
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute = nullptr;
  decltype(&::cuMemGetAllocationGranularity) cuMemGetAllocationGranularity = nullptr;
  decltype(&::cuMemAddressReserve) cuMemAddressReserve = nullptr;
  decltype(&::cuMemAddressFree) cuMemAddressFree = nullptr;
  decltype(&::cuMemCreate) cuMemCreate = nullptr;
  decltype(&::cuMemMap) cuMemMap = nullptr;
  decltype(&::cuMemSetAccess) cuMemSetAccess = nullptr;
  decltype(&::cuMemUnmap) cuMemUnmap = nullptr;
  decltype(&::cuMemRelease) cuMemRelease = nullptr;

 private:
  explicit Driver(void* library) {
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr)
        throw std::runtime_error(std::string("the driver is too old: it lacks ") + name);
    };
    find(cuGetErrorString, "cuGetErrorString");
    find(cuDeviceGet, "cuDeviceGet");
    find(cuDeviceGetAttribute, "cuDeviceGetAttribute");
    find(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
    find(cuMemAddressReserve, "cuMemAddressReserve");
    find(cuMemAddressFree, "cuMemAddressFree");
    find(cuMemCreate, "cuMemCreate");
    find(cuMemMap, "cuMemMap");
    find(cuMemSetAccess, "cuMemSetAccess");
    find(cuMemUnmap, "cuMemUnmap");
    find(cuMemRelease, "cuMemRelease");
  }

  const char* text(CUresult result) const noexcept {
    const char* string = nullptr;
    if (cuGetErrorString(result, &string) != CUDA_SUCCESS || string == nullptr) return "unknown driver error";
    return string;
  }
};

// ---- Owners of what the runtime hands out

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { report(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  bool is_idle() const {
    const cudaError_t result = cudaStreamQuery(stream_);
    if (result == cudaErrorNotReady) {
      const cudaError_t last = cudaGetLastError();  // or the next launch would be blamed for it
      if (last != cudaErrorNotReady) check(last, "an earlier call");
      return false;
    }
    check(result, "cudaStreamQuery");
    return true;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { report(cudaEventDestroy(event_), "cudaEventDestroy"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) { check(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
  double ms_since(const Event& start) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size_bytes) { check(cudaMalloc(&data_, size_bytes), "cudaMalloc"); }
  ~DeviceBuffer() { report(cudaFree(data_), "cudaFree"); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Host memory, touched once, page-locked or as malloc gives it.
class HostBuffer {
 public:
  HostBuffer(size_t size_bytes, bool page_locked) : page_locked_(page_locked) {
    if (page_locked_) {
      check(cudaHostAlloc(&data_, size_bytes, cudaHostAllocDefault), "cudaHostAlloc");
    } else {
      data_ = std::malloc(size_bytes);
      if (data_ == nullptr) throw std::bad_alloc();
    }
    std::memset(data_, 1, size_bytes);
  }
  ~HostBuffer() {
    if (page_locked_) {
      report(cudaFreeHost(data_), "cudaFreeHost");
    } else {
      std::free(data_);
    }
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() const { return data_; }

 private:
  bool page_locked_;
  void* data_ = nullptr;
};

}  // namespace terrace::bench
