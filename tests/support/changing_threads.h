// Calls of an embedding program that come from changing threads: one at a time, each `every`-th from a thread
// of its own, which is over when the call returns.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <terrace/offload/lease/parameter_access.h>

namespace terrace::testing {

class Caller {
 public:
  // Calls stay on the thread that makes them where `every` is 0.
  explicit Caller(uint32_t every) : every_(every) {}

  template <typename Body>
  auto operator()(Body body) const {
    using Result = std::invoke_result_t<Body>;
    if constexpr (std::is_void_v<Result>) {
      run(body);
    } else {
      std::optional<Result> result;
      run([&] { result.emplace(body()); });
      return std::move(*result);
    }
  }

 private:
  template <typename Body>
  void run(Body body) const {
    if (every_ == 0 || ++calls_ % every_ != 0) return body();
    std::exception_ptr failure;
    std::thread([&] {
      try {
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  uint32_t every_;
  mutable uint32_t calls_ = 0;
};

// Every call on the way to `access` through `caller`.
class AccessByCaller final : public ParameterAccess {
 public:
  AccessByCaller(ParameterAccess& access, Caller caller) : access_(access), caller_(caller) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    caller_([&] { access_.begin_use(operation, tensors, kind); });
  }
  void end_use() override {
    caller_([&] { access_.end_use(); });
  }
  void select_micro_batch(uint32_t micro_batch) override {
    caller_([&] { access_.select_micro_batch(micro_batch); });
  }
  const std::byte* parameter(TensorId tensor) const override {
    return caller_([&] { return access_.parameter(tensor); });
  }
  GradientView gradient(TensorId tensor) override {
    return caller_([&] { return access_.gradient(tensor); });
  }

 private:
  ParameterAccess& access_;
  const Caller caller_;
};

}  // namespace terrace::testing
