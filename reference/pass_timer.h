// PassTimer: parameter access that notes when forward ends, at the first backward use of a micro-batch, and
// how long each use computes. It changes nothing and reads the clock twice per use.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/offload/lease/parameter_access.h>

namespace terrace {

class PassTimer final : public ParameterAccess {
 public:
  // The collaborators outlive the timer. `use_ns` gets the time of each use from when its tensors are there
  // to its end.
  PassTimer(ParameterAccess& access, const Clock& clock, std::vector<uint64_t>& use_ns)
      : access_(access), clock_(clock), use_ns_(use_ns) {}

  void begin_micro_batch() {
    start_ns_ = clock_.now_ns();
    forward_ = true;
  }
  // The forward time of all micro-batches so far.
  uint64_t forward_ns() const { return forward_ns_; }

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    if (forward_ && kind == UseKind::backward) {
      forward_ns_ += clock_.now_ns() - start_ns_;
      forward_ = false;
    }
    access_.begin_use(operation, tensors, kind);
    use_start_ns_ = clock_.now_ns();
  }
  void end_use() override {
    use_ns_.push_back(clock_.now_ns() - use_start_ns_);
    access_.end_use();
  }
  void select_micro_batch(uint32_t micro_batch) override { access_.select_micro_batch(micro_batch); }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  const Clock& clock_;
  std::vector<uint64_t>& use_ns_;
  uint64_t start_ns_ = 0;
  uint64_t use_start_ns_ = 0;
  uint64_t forward_ns_ = 0;
  bool forward_ = false;
};

}  // namespace terrace
