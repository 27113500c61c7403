// GradientValues: the gradients of a step as fp32 numbers, between its last micro-batch and its update: the
// sums over all micro-batches and ranks, as the update will read them. What is written takes the place of
// that, for the norm too. It reaches gradients that rest in memory (OffloadOptions::holds_gradients).
//
// The step thread uses it. Of several ranks each writes its own tiles of what all of them are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/state/tensor_runs.h>
#include <terrace/offload/update/state_homes.h>

namespace terrace {

class GradientValues {
 public:
  // Both outlive this.
  GradientValues(const RunContext& run, GradientStore& gradients) : run_(run), gradients_(gradients) {}

  // `values` are those of a trained tensor from element `first` on, on all ranks. A tensor without a gradient
  // in the step has zeros. Throws Error(config) where its gradient is not in memory that the host reaches.
  void read(TensorId tensor, uint64_t first, std::span<float> values);
  // Throws Error(misuse) for a tensor without a gradient in the step, too.
  void write(TensorId tensor, uint64_t first, std::span<const float> values);

 private:
  [[noreturn]] void refuse(std::string_view action, TensorId tensor, std::string reason, Wording advice);
  // Calls body(run, gradient) for each run of the own tiles, with the chunk's gradient.
  void for_each_own(std::string_view action, TensorId tensor, uint64_t first, uint64_t count,
                    FunctionRef<void(const TensorRun&, std::byte*)> body);

  const RunContext& run_;
  GradientStore& gradients_;
};

}  // namespace terrace
