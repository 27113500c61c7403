#include <terrace/offload/homes/caller_tensors.h>

#include <cstring>
#include <string>

#include <terrace/base/error.h>
#include <terrace/memory/space/tensor_runs.h>

namespace terrace {
namespace {

void require_address(const TensorSpec& spec, const std::byte* address) {
  if (address != nullptr) return;
  throw Error(ErrorKind::misuse, {"cannot keep the parameters of", spec.name,
                                  "they are the program's, and their address is null",
                                  "set TensorSpec::memory to where the tensor lies"});
}

}  // namespace

CallerTensors::CallerTensors(const FlatSpace& space) : space_(space), addresses_(space.tensor_count()) {
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorSpec& spec = space.tensor(TensorId{t});
    if (spec.home != TensorHome::caller) continue;
    require_address(spec, spec.memory);
    addresses_[t] = spec.memory;
  }
}

void CallerTensors::move(TensorId tensor, std::byte* address) {
  const TensorSpec& spec = space_.tensor(tensor);
  if (spec.home != TensorHome::caller)
    throw Error(ErrorKind::misuse, {"cannot move the parameters of", spec.name, "they are not the program's",
                                    "give TensorSpec::home and TensorSpec::memory"});
  require_address(spec, address);
  addresses_[index_of(tensor)] = address;
}

void CallerTensors::scatter(ChunkId chunk, uint64_t first_element, uint64_t count,
                            const std::byte* from) const {
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  for_each_tensor_in(space_, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t elements) {
                       std::memcpy(addresses_[index_of(tensor)] + first * element_bytes,
                                   from + at * element_bytes, elements * element_bytes);
                     });
}

void CallerTensors::gather(ChunkId chunk, uint64_t first_element, uint64_t count, std::byte* to) const {
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  std::memset(to, 0, count * element_bytes);
  for_each_tensor_in(space_, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t elements) {
                       std::memcpy(to + at * element_bytes,
                                   addresses_[index_of(tensor)] + first * element_bytes,
                                   elements * element_bytes);
                     });
}

}  // namespace terrace
