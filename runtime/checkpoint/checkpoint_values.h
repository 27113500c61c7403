// CheckpointValues: the values of a checkpoint's tensors in any order, for runs that take up the weights and
// not the training. It must never hold more than a few blocks, nor return an unchecked byte.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/state/training_state.h>

namespace terrace {

class CheckpointValues {
 public:
  // `space` holds the tensors of the trained model, trainable and frozen as they were then. Since version 5
  // each is found by its name, in whatever order the program that saved has them and however it cuts them.
  // Throws as load_checkpoint() does.
  CheckpointValues(const std::filesystem::path& path, const FlatSpace& space);
  // The tensors are those that the checkpoint lists, with their numbers there. Throws Error(config) where it
  // lists none, as before version 5.
  explicit CheckpointValues(const std::filesystem::path& path);
  ~CheckpointValues();

  // What the checkpoint says of itself (docs/checkpoint_format.md).
  std::string facts() const;

  // Fills `values` with the elements of a tensor from first_element on: its master weights, or its parameters
  // if it is frozen. Thread-safe; one thread reads at a time.
  void read(TensorId tensor, uint64_t first_element, std::span<float> values);
  // The same of a moment, or of what `what` names. Throws Error(misuse) for elements or kinds that the tensor
  // does not have; of a trained one there are no parameters beside the masters.
  void read(TensorId tensor, ValueKind what, uint64_t first_element, std::span<float> values);

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

}  // namespace terrace
