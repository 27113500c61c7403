// FakeCublasLt: the calls of cuBLASLt on memory of this machine. Products are computed plainly, in fp32 and
// in the order of the depth, and leave nothing of what was in their workspace. It refuses what the library is
// documented to refuse, and what would not repeat itself; and any call can be made to fail. One at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <terrace/reference/model/compute/cuda/cublas_lt.h>

namespace terrace::testing {

class FakeCublasLt {
 public:
  FakeCublasLt();
  ~FakeCublasLt();
  FakeCublasLt(const FakeCublasLt&) = delete;
  FakeCublasLt& operator=(const FakeCublasLt&) = delete;

  static std::unique_ptr<const CublasLt> table();

  // The next call of `symbol` returns `status` and does nothing.
  void fail(const std::string& symbol, cublas_lt::Status status);
  // Products are made when who plays the streams comes to them; without, at once.
  using Streams = std::function<void(CUstream_st* stream, std::function<void()> product)>;
  void set_streams(Streams streams);
  // No algorithm is found for products of this type.
  void refuse_type(int type);
  uint64_t calls(const std::string& symbol) const;
  // What was made and not given back, in words; empty if nothing.
  std::string leftovers() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace terrace::testing
