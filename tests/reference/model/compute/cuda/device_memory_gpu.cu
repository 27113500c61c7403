// A GPU's memory, for the tests of the kernels.
#include <cuda_runtime.h>

#include <terrace/base/error.h>

#include "device_memory.h"

namespace terrace::testing {
namespace {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Error(ErrorKind::device, {std::string(what) + " failed",
                                  "the GPU of the tests",
                                  cudaGetErrorString(result),
                                  "run it again under compute-sanitizer"});
}

}  // namespace

std::string why_no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return cudaGetErrorString(result);
  return count == 0 ? "the driver finds no GPU" : "";
}
void* allocate_on_device(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc");
  return memory;
}
void free_on_device(void* memory) {
  cudaFree(memory);
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy to the GPU");
}
void copy_from_device(void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a copy from the GPU");
}
void run_threads_backwards(bool) {}

}  // namespace terrace::testing
