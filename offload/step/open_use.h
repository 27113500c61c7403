// OpenUse: a use of tensors that an operation has begun and not ended.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/memory/space/tensor.h>

namespace terrace {

struct OpenUse {
  OpenUse() { operation.reserve(256); }

  std::string operation;
  UseKind kind = UseKind::inference;
  std::vector<TensorId> tensors;
  std::vector<ChunkId> chunks;             // the chunks that hold the tensors, ascending
  std::array<uint32_t, 3> chunks_found{};  // at its begin: on the device, on their way, neither
};

}  // namespace terrace
