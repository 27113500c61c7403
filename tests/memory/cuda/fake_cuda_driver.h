// FakeCudaDriver: the CUDA driver's calls on memory of this machine, so that the real back end runs where
// there is no GPU. Physical memory is a memfd, mapped wherever it is asked for, so several mappings share
// bytes; what is not mapped faults for the host and is an illegal access for the fake GPU; streams are
// threads that run in order; and every call can be made to fail. It knows nothing of Terrace.
//
// The driver's calls take no context of ours, so there is one fake at a time, which must be the last to go.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <terrace/memory/cuda/internal/cuda_driver.h>

namespace terrace::testing {

struct FakeCudaOptions {
  int driver_version = 12040;
  int gpu_count = 1;
  bool virtual_memory = true;
  uint64_t granularity_bytes = 4096;
  uint64_t memory_bytes = uint64_t{1} << 30;
  // Fills are over when their call returns: for who computes on the host, in the order of no stream.
  bool waits_for_fills = false;
  // So often the stream's thread lets others go first before it copies to the host.
  uint32_t yields_to_host = 0;
};

class FakeCudaDriver {
 public:
  explicit FakeCudaDriver(FakeCudaOptions options = {});
  ~FakeCudaDriver();
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;

  static std::unique_ptr<const CudaDriver> table();

  // The nth call from now (1: the next) of `call`, as "cuMemMap", returns `result` and does nothing.
  void fail(const std::string& call, uint64_t nth, CUresult result);
  // Every later call fails, and so does whatever waits for the GPU.
  void lose_device();
  // Copies and fills wait on their streams until they are let go.
  void hold_copies();
  void let_copies_go();
  // Puts a kernel on a stream: it does its work when release_operations() is called, which may be long after.
  void run_operation(CUstream stream, std::function<void()> work);
  void release_operations();
  // Puts a kernel on a stream that does its work when the stream comes to it, unless the device is lost.
  void run_kernel(CUstream stream, std::function<void()> work);

  uint64_t calls(const std::string& call) const;
  // True if all of it is mapped memory of the fake GPU, or if some of it is.
  bool has_all(const void* memory, uint64_t bytes) const;
  bool has_some(const void* memory, uint64_t bytes) const;
  uint64_t used_bytes() const;        // of cuMemCreate
  uint64_t registered_bytes() const;  // of cuMemHostRegister
  uint64_t largest_registration_bytes() const;
  // What was made and not given back, in words; empty if nothing.
  std::string leftovers() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace terrace::testing
