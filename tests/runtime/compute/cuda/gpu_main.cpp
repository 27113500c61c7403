// The kernels' test cases on a GPU. Exits with 77, which ctest counts as skipped, where there is none.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "device_memory.h"

int main(int argument_count, char** arguments) {
  testing::InitGoogleTest(&argument_count, arguments);
  if (const std::string reason = terrace::testing::why_no_device(); !reason.empty()) {
    std::printf("gpu.kernels: Skipped\n%s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
