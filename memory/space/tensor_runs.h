// for_each_tensor_in(): the parts of tensors that lie in a run of elements of a chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

// Calls body(tensor, first_element_in_tensor, first_element_in_run, count) for each tensor with elements in
// the run, in flat order.
template <typename Body>
void for_each_tensor_in(const FlatSpace& space, ChunkId chunk, uint64_t first_element, uint64_t count,
                        Body body) {
  const uint64_t begin = space.chunk(chunk).first_element + first_element;  // in the section
  const auto end_of = [&](TensorId tensor) {
    return space.place(tensor).first_element + space.place(tensor).elements;
  };
  const std::span<const TensorId> tensors = space.tensors_of(chunk);
  auto next = std::ranges::partition_point(tensors, [&](TensorId tensor) { return end_of(tensor) <= begin; });
  for (; next != tensors.end() && space.place(*next).first_element < begin + count; ++next) {
    const uint64_t start = space.place(*next).first_element;
    const uint64_t first = std::max(begin, start), last = std::min(begin + count, end_of(*next));
    body(*next, first - start, first - begin, last - first);
  }
}

}  // namespace terrace
