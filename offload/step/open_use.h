// OpenUse: the use of tensors that an operation has begun and not ended.
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
  std::vector<ChunkId> chunks;             // that hold them, ascending
  std::array<uint32_t, 3> chunks_found{};  // when it began: on the device, on their way, neither
};

}  // namespace terrace
