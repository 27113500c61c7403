// The library of products that the test cases of LibraryProducts run with: the fake one with the emulator, on
// a GPU what is installed.
#pragma once

#include <memory>
#include <string>

#include <terrace/reference/model/compute/cuda/cublas_lt.h>

namespace terrace::testing {

class LibraryUnderTest {
 public:
  LibraryUnderTest();
  ~LibraryUnderTest();
  LibraryUnderTest(const LibraryUnderTest&) = delete;
  LibraryUnderTest& operator=(const LibraryUnderTest&) = delete;

  // Null where there is none.
  const CublasLt* calls() const;
  const std::string& why_none() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::testing
