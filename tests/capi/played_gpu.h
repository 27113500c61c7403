// What a program in C asks of a GPU of the played driver, which its process has loaded.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace terrace::capi {

// A call of the driver by its name.
template <typename Call>
Call* driver_call(const char* name) {
  return reinterpret_cast<Call*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// The context of a GPU, for what a program asks of it.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu) : gpu_(gpu) {
    EXPECT_EQ(driver_call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, gpu), 0);
    EXPECT_EQ(driver_call<int(void*)>("cuCtxPushCurrent_v2")(context_), 0);
  }
  ~CurrentGpu() {
    EXPECT_EQ(driver_call<int(void**)>("cuCtxPopCurrent_v2")(&context_), 0);
    EXPECT_EQ(driver_call<int(int)>("cuDevicePrimaryCtxRelease_v2")(gpu_), 0);
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  const int gpu_;
  void* context_ = nullptr;
};

}  // namespace terrace::capi
