// TensorMemory: tensors that lie in memory of the program, each wherever the program has it, seen as the
// chunks of the flat space. A tensor without an address reads as zeros.
//
// Addresses change between uses only; several threads may then use it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

class TensorMemory {
 public:
  // `space` outlives this. No tensor has an address yet.
  explicit TensorMemory(const FlatSpace& space) : space_(space), addresses_(space.tensor_count()) {}

  // The address of the tensor's first element, contiguous and in its own type; null: none.
  void place(TensorId tensor, std::byte* address) { addresses_[index_of(tensor)] = address; }

  // The address of a run of the chunk's elements; null unless one tensor with an address has them all.
  std::byte* find(ChunkId chunk, uint64_t first_element, uint64_t count) const;
  // Copies a run of the chunk's elements between the tensors and contiguous memory, which begins with the
  // first of them. gather() makes padding 0, and scatter() leaves it out.
  void gather(ChunkId chunk, uint64_t first_element, uint64_t count, std::byte* to) const;
  void scatter(ChunkId chunk, uint64_t first_element, uint64_t count, const std::byte* from) const;

 private:
  const FlatSpace& space_;
  std::vector<std::byte*> addresses_;  // by tensor
};

}  // namespace terrace
