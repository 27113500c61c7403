#include <terrace/offload/transfer/tensor_memory.h>

#include <cstring>

#include <terrace/memory/space/tensor_runs.h>

namespace terrace {

std::byte* TensorMemory::find(ChunkId chunk, uint64_t first_element, uint64_t count) const {
  std::byte* found = nullptr;
  for_each_tensor_in(space_, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t first, uint64_t, uint64_t elements) {
                       std::byte* const address = addresses_[index_of(tensor)];
                       if (elements == count && address != nullptr)
                         found = address + first * bytes_of(space_.section_of(chunk).type);
                     });
  return found;
}

void TensorMemory::gather(ChunkId chunk, uint64_t first_element, uint64_t count, std::byte* to) const {
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  std::memset(to, 0, count * element_bytes);
  for_each_tensor_in(space_, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t elements) {
                       const std::byte* const address = addresses_[index_of(tensor)];
                       if (address == nullptr) return;
                       std::memcpy(to + at * element_bytes, address + first * element_bytes,
                                   elements * element_bytes);
                     });
}

void TensorMemory::scatter(ChunkId chunk, uint64_t first_element, uint64_t count,
                           const std::byte* from) const {
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  for_each_tensor_in(space_, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t elements) {
                       std::byte* const address = addresses_[index_of(tensor)];
                       if (address == nullptr) return;
                       std::memcpy(address + first * element_bytes, from + at * element_bytes,
                                   elements * element_bytes);
                     });
}

}  // namespace terrace
