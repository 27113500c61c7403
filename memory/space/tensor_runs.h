// for_each_tensor_in(): the parts of tensors that lie in a run of elements of a chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

// Calls body(tensor, first_element_in_tensor, first_element_in_run, count) for each tensor with elements in
// the run, in flat order.
template <typename Body>
void for_each_tensor_in(const FlatSpace& space, ChunkId chunk, uint64_t first_element, uint64_t count,
                        Body body) {
  const uint64_t begin = space.chunk(chunk).first_element + first_element;  // in the section
  for (const TensorId tensor : space.tensors_of(chunk)) {
    const TensorPlace& place = space.place(tensor);
    const uint64_t first = std::max(begin, place.first_element);
    const uint64_t last = std::min(begin + count, place.first_element + place.elements);
    if (first < last) body(tensor, first - place.first_element, first - begin, last - first);
  }
}

}  // namespace terrace
