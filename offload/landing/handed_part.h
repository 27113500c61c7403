// HandedPart: the part of a tensor's gradient that lies in one chunk, in memory of the program, on the host
// or on the device (GradientOrigin::handed_over_on_device).
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/memory/space/tensor.h>

namespace terrace {

struct HandedPart {
  TensorId tensor{};
  uint64_t first_element = 0;           // in the tensor
  const std::byte* gradient = nullptr;  // in the tensor's own type, with any alignment
  uint64_t element_count = 0;
};

}  // namespace terrace
