// TensorSteps: how many updates each tensor has had, where tensors without a gradient are left out
// (UnusedGradients::skip). These numbers are part of the state: the bias correction of an optimizer depends
// on them. The step thread uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/space/tensor.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

class TensorSteps {
 public:
  // Where all tensors are updated in every step there are no counts.
  TensorSteps(uint32_t tensor_count, UnusedGradients unused)
      : counts_(unused == UnusedGradients::skip ? tensor_count : 0) {}

  bool are_counted() const { return !counts_.empty(); }
  // By tensor; empty where they are not counted.
  std::span<const uint64_t> counts() const { return counts_; }
  void note_update(TensorId tensor) { ++counts_[index_of(tensor)]; }
  void reset() { std::ranges::fill(counts_, 0); }
  // `counts` has as many as counts().
  void set(std::span<const uint64_t> counts) { std::ranges::copy(counts, counts_.begin()); }

 private:
  std::vector<uint64_t> counts_;
};

}  // namespace terrace
