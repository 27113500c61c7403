// The kernels' test cases on a GPU. Exits with 77, which ctest counts as skipped, where there is none.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "device_memory.h"
#include "library_under_test.h"

namespace terrace::testing {

// The newest cuBLASLt that is installed.
struct LibraryUnderTest::State {
  MemoryLog log;
  std::unique_ptr<const CublasLt> calls = CublasLt::load_any(log);
  std::string why_none = calls == nullptr ? log.lines().front().text : "";
};

LibraryUnderTest::LibraryUnderTest() : state_(std::make_unique<State>()) {}
LibraryUnderTest::~LibraryUnderTest() = default;
const CublasLt* LibraryUnderTest::calls() const {
  return state_->calls.get();
}
const std::string& LibraryUnderTest::why_none() const {
  return state_->why_none;
}

}  // namespace terrace::testing

int main(int argument_count, char** arguments) {
  testing::InitGoogleTest(&argument_count, arguments);
  if (const std::string reason = terrace::testing::why_no_device(); !reason.empty()) {
    std::printf("gpu.kernels: Skipped\n%s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
