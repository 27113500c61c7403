// CallerTensors: the tensors whose parameters lie in memory of the program (TensorHome::caller). Their chunks
// have gradients and records like others, and no slot of parameters on any tier: an update writes the new
// parameters straight to where the program has them.
//
// The addresses change between steps only; the thread of an update may write beside the step thread.
#pragma once

#include <cstddef>

#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/transfer/tensor_memory.h>

namespace terrace {

class CallerTensors {
 public:
  // `space` outlives this. Throws Error(misuse) for a tensor of the caller without an address.
  explicit CallerTensors(const FlatSpace& space);

  // True if the parameters of the chunk lie in memory of the program.
  bool have(ChunkId chunk) const { return space_.section_of(chunk).home == TensorHome::caller; }
  // Throws Error(misuse) where the tensor is not the caller's, or without an address.
  void move(TensorId tensor, std::byte* address);
  const TensorMemory& memory() const { return memory_; }

 private:
  const FlatSpace& space_;
  TensorMemory memory_;
};

}  // namespace terrace
