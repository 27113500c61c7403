// libcuda.so.1 of a machine without a GPU: the fake driver's calls by the names that a program looks up, so
// that libterrace.so, whoever has loaded it, finds three GPUs.
#include "fake_cuda_driver.h"

namespace {

terrace::testing::FakeCudaDriver& driver() {
  static auto* const driver = new terrace::testing::FakeCudaDriver({.gpu_count = 3});
  return *driver;
}

// It lives as long as the process: whoever has loaded a driver keeps it.
const terrace::CudaDriver& played() {
  static const auto* const table = terrace::testing::FakeCudaDriver::table().release();
  (void)driver();
  return *table;
}

}  // namespace

#define TERRACE_PLAYED(member, name, symbol)                                                    \
  extern "C" __attribute__((visibility("default"))) decltype(&name) terrace_played_##member() { \
    return played().member;                                                                     \
  }                                                                                             \
  extern "C" __attribute__((visibility("default"), ifunc("terrace_played_" #member))) decltype(name) name;
TERRACE_CUDA_CALLS(TERRACE_PLAYED)

// For a library that puts work on a stream (played_libnccl.cpp).
extern "C" __attribute__((visibility("default"))) CUresult cuLaunchHostFunc(CUstream stream, CUhostFn work,
                                                                            void* data) {
  driver().run_kernel(stream, [work, data] { work(data); });
  return CUDA_SUCCESS;
}
