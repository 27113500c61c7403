// PassTimer: parameter access that notes when forward ends: at the first backward use of a micro-batch. It
// changes nothing and costs one look at the clock per micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <terrace/base/clock.h>
#include <terrace/offload/parameter_access.h>

namespace terrace {

class PassTimer final : public ParameterAccess {
 public:
  // Both outlive the timer.
  PassTimer(ParameterAccess& access, const Clock& clock) : access_(access), clock_(clock) {}

  void begin_micro_batch() {
    start_ns_ = clock_.now_ns();
    forward_ = true;
  }
  // Of all micro-batches so far.
  uint64_t forward_ns() const { return forward_ns_; }

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    if (forward_ && kind == UseKind::backward) {
      forward_ns_ += clock_.now_ns() - start_ns_;
      forward_ = false;
    }
    access_.begin_use(operation, tensors, kind);
  }
  void end_use() override { access_.end_use(); }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  const Clock& clock_;
  uint64_t start_ns_ = 0;
  uint64_t forward_ns_ = 0;
  bool forward_ = false;
};

}  // namespace terrace
