// FakeCuFile: cuFile's calls on files of this machine and on the memory that FakeCudaDriver plays, so that
// the real reads run where there is no GPU. It refuses what cuFile would: files that are not registered,
// memory that is not the GPU's, threads without a context. It knows nothing of Terrace.
//
// One fake at a time, for as long as a FakeCudaDriver lives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <terrace/memory/cuda/internal/cu_file_calls.h>

namespace terrace::testing {

class FakeCuFile {
 public:
  FakeCuFile();
  ~FakeCuFile();
  FakeCuFile(const FakeCuFile&) = delete;
  FakeCuFile& operator=(const FakeCuFile&) = delete;

  static std::unique_ptr<const CuFileCalls> table();

  // The nth call from now (1: the next) of `call`, as "cuFileRead", does nothing and ends with `error`: a
  // CUfileOpError, or an errno.
  void fail(const std::string& call, uint64_t nth, int error);
  // A read moves no more at once.
  void read_at_most(uint64_t bytes);
  // Called on the reading thread, before anything is moved.
  void on_read(std::function<void()> action);

  uint64_t reads() const;
  uint64_t read_bytes() const;
  // "driver open, 2 files"; empty: nothing is open.
  std::string leftovers() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace terrace::testing
