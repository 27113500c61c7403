// CallerTensors: the tensors whose parameters lie in memory of the program (TensorHome::caller). Their chunks
// have gradients and records like others, and no slot of parameters on any tier: an update writes the new
// parameters straight to where the program has them.
//
// The addresses change between steps only; the thread of an update may scatter beside the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

class CallerTensors {
 public:
  // `space` outlives this. Throws Error(misuse) for a tensor of the caller without an address.
  explicit CallerTensors(const FlatSpace& space);

  // True if the parameters of the chunk lie in memory of the program.
  bool have(ChunkId chunk) const { return space_.section_of(chunk).home == TensorHome::caller; }
  // Throws Error(misuse) where the tensor is not the caller's, or without an address.
  void move(TensorId tensor, std::byte* address);

  // Copies a run of the chunk's elements between contiguous memory, which begins with the first of them, and
  // the tensors of the program. gather() makes padding 0.
  void scatter(ChunkId chunk, uint64_t first_element, uint64_t count, const std::byte* from) const;
  void gather(ChunkId chunk, uint64_t first_element, uint64_t count, std::byte* to) const;

 private:
  const FlatSpace& space_;
  std::vector<std::byte*> addresses_;  // by tensor; null where it is not the caller's
};

}  // namespace terrace
