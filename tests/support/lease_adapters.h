// Other ways to use an Offloader than a lease after the other, for a model that knows none of them.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/use_trace.h>

namespace terrace::testing {

// What the uses around others read. Nobody may read a tensor whose update has begun, so uses that go backward
// are inside of one that reads what the last of them has.
struct Held {
  std::vector<TensorId> forward, backward;
};
inline Held held_in(const std::vector<TensorUse>& trace) {
  Held held;
  for (const TensorUse& use : trace) {
    if (use.kind == UseKind::backward) {
      held.backward = use.tensors;
    } else if (held.forward.empty() && !use.tensors.empty()) {
      held.forward = {use.tensors.front()};
    }
  }
  return held;
}

// Every use is inside of another one.
class NestingAccess final : public ParameterAccess {
 public:
  NestingAccess(ParameterAccess& access, Held held) : access_(access), held_(std::move(held)) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    access_.begin_use("around " + std::string(operation),
                      kind == UseKind::backward ? held_.backward : held_.forward,
                      kind == UseKind::inference ? kind : UseKind::forward);
    access_.begin_use(operation, tensors, kind);
  }
  void end_use() override {
    access_.end_use();
    access_.end_use();
  }
  void select_micro_batch(uint32_t micro_batch) override { access_.select_micro_batch(micro_batch); }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  const Held held_;
};

inline std::vector<TensorUse> nested_trace(const std::vector<TensorUse>& trace, const Held& held) {
  UseRecorder recorder;
  NestingAccess nesting(recorder, held);
  for (const TensorUse& use : trace) {
    nesting.select_micro_batch(use.micro_batch);
    const Lease lease(nesting, use.operation, use.tensors, use.kind);
  }
  return recorder.take_trace();
}

// What the model leases of the program's own tensors is read where it lies, and the rest through `access`.
class CallerAccess final : public ParameterAccess {
 public:
  CallerAccess(ParameterAccess& access, std::vector<TensorSpec> specs)
      : access_(access), specs_(std::move(specs)) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    std::vector<TensorId> managed;
    for (const TensorId tensor : tensors) {
      if (!is_callers(tensor)) managed.push_back(tensor);
    }
    access_.begin_use(operation, managed, kind);
  }
  void end_use() override { access_.end_use(); }
  void select_micro_batch(uint32_t micro_batch) override { access_.select_micro_batch(micro_batch); }
  const std::byte* parameter(TensorId tensor) const override {
    return is_callers(tensor) ? specs_[index_of(tensor)].memory : access_.parameter(tensor);
  }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  bool is_callers(TensorId tensor) const { return specs_[index_of(tensor)].home == TensorHome::caller; }

  ParameterAccess& access_;
  const std::vector<TensorSpec> specs_;
};

inline std::vector<TensorUse> managed_trace(const std::vector<TensorUse>& trace,
                                            const std::vector<TensorSpec>& specs) {
  UseRecorder recorder;
  CallerAccess managed(recorder, specs);
  for (const TensorUse& use : trace) {
    managed.select_micro_batch(use.micro_batch);
    const Lease lease(managed, use.operation, use.tensors, use.kind);
  }
  return recorder.take_trace();
}

// Which trained tensors are the program's.
enum class Callers : uint8_t { none, every_second, all };

// Makes them the program's, in `memory`.
inline void give_to_caller(std::vector<TensorSpec>& specs, Callers which,
                           std::vector<std::vector<std::byte>>& memory) {
  memory.resize(specs.size());
  for (size_t t = 0; t < specs.size(); ++t) {
    const bool gives = which == Callers::all || (which == Callers::every_second && t % 2 == 1);
    if (!specs[t].trainable || !gives) continue;
    const uint64_t element_bytes = bytes_of(specs[t].type);
    memory[t].resize((specs[t].element_count() + 1) * element_bytes);
    specs[t].home = TensorHome::caller;
    specs[t].memory = memory[t].data() + element_bytes;  // aligned for its elements alone
  }
}

// Gradients are made in memory of its own, and handed over when they are complete. `lends`: that memory stays
// as it is until end_step().
class HandingAccess final : public ParameterAccess {
 public:
  // `hand_over` is called with complete gradients.
  using HandOver = std::function<void(TensorId, std::span<const std::byte>)>;
  HandingAccess(ParameterAccess& access, std::vector<TensorSpec> specs, bool lends, HandOver hand_over)
      : access_(access),
        specs_(std::move(specs)),
        lends_(lends),
        hand_over_(std::move(hand_over)),
        gradients_(specs_.size()),
        uses_(specs_.size()) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    throw_failure();
    access_.begin_use(operation, tensors, kind);
    if (kind == UseKind::backward) leased_.assign(tensors.begin(), tensors.end());
  }
  // Destructors call it: what it fails with is thrown by the next call.
  void end_use() override {
    access_.end_use();
    try {
      for (const TensorId tensor : std::exchange(leased_, {})) {
        const TensorSpec& spec = specs_[index_of(tensor)];
        if (spec.trainable && ++uses_[index_of(tensor)] == spec.backward_uses) hand_over(tensor);
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  // Before that of the offloader: what had fewer uses than it could have.
  void end_micro_batch() {
    throw_failure();
    for (uint32_t t = 0; t < specs_.size(); ++t) {
      if (uses_[t] > 0) hand_over(TensorId{t});
    }
  }
  // The update is over: nobody reads gradients any more.
  void end_step() {
    for (std::vector<std::byte>& gradient : gradients_) gradient.assign(gradient.size(), kSpent);
  }
  void select_micro_batch(uint32_t micro_batch) override { access_.select_micro_batch(micro_batch); }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override {
    const TensorSpec& spec = specs_[index_of(tensor)];
    std::vector<std::byte>& gradient = gradients_[index_of(tensor)];
    const bool adds = uses_[index_of(tensor)] > 0;
    if (!adds) gradient.assign(spec.element_count() * bytes_of(spec.type), std::byte{0});
    return {gradient.data(), adds};
  }

 private:
  void throw_failure() {
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  void hand_over(TensorId tensor) {
    const TensorSpec& spec = specs_[index_of(tensor)];
    std::vector<std::byte>& gradient = gradients_[index_of(tensor)];
    gradient.resize(spec.element_count() * bytes_of(spec.type));  // nobody has made it where none is read
    hand_over_(tensor, gradient);
    if (!lends_) gradient.assign(gradient.size(), kSpent);
    uses_[index_of(tensor)] = 0;
  }

  static constexpr std::byte kSpent{0x7f};

  ParameterAccess& access_;
  const std::vector<TensorSpec> specs_;
  const bool lends_;
  const HandOver hand_over_;
  std::vector<std::vector<std::byte>> gradients_;
  std::vector<uint32_t> uses_;  // that have added to the gradient
  std::vector<TensorId> leased_;
  std::exception_ptr failure_;
};

}  // namespace terrace::testing
