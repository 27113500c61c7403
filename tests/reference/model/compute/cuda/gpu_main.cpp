// The kernels' test cases on a GPU. Exits with 77, which ctest counts as skipped, where there is none.
#include <gtest/gtest.h>

#include <climits>
#include <cstdio>
#include <string>

#include "device_memory.h"
#include "library_under_test.h"

namespace terrace::testing {

// The newest cuBLASLt that is installed.
struct LibraryUnderTest::State {
  CublasLtFound found = CublasLt::find_installed(INT_MAX);
};

LibraryUnderTest::LibraryUnderTest() : state_(std::make_unique<State>()) {}
LibraryUnderTest::~LibraryUnderTest() = default;
const CublasLt* LibraryUnderTest::calls() const {
  return state_->found.library.get();
}
const std::string& LibraryUnderTest::why_none() const {
  return state_->found.reason;
}

}  // namespace terrace::testing

int main(int argument_count, char** arguments) {
  ::testing::InitGoogleTest(&argument_count, arguments);
  if (const std::string reason = terrace::testing::why_no_device(); !reason.empty()) {
    std::printf("gpu.kernels: Skipped\n%s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
