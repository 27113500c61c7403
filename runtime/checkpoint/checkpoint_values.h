// CheckpointValues: the values of a checkpoint's tensors in any order, for runs that take up the weights and
// not the training. It must never hold more than a few blocks, nor return an unchecked byte.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

class CheckpointValues {
 public:
  // `space` holds the tensors of the trained model, trainable and frozen as they were then; it outlives this.
  // Throws as load_checkpoint() does.
  CheckpointValues(const std::filesystem::path& path, const FlatSpace& space);
  ~CheckpointValues();

  // Fills `values` with the elements of a tensor from first_element on: its master weights, or its parameters
  // if it is frozen. Thread-safe; one thread reads at a time.
  void read(TensorId tensor, uint64_t first_element, std::span<float> values);

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

}  // namespace terrace
