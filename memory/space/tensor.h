// TensorSpec: a parameter tensor before anything is placed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>

namespace terrace {

enum class TensorId : uint32_t {};  // position in the list of TensorSpecs given to FlatSpace
enum class ChunkId : uint32_t {};   // position among all chunks of all sections

constexpr uint32_t index_of(TensorId id) {
  return static_cast<uint32_t>(id);
}
constexpr uint32_t index_of(ChunkId id) {
  return static_cast<uint32_t>(id);
}

// Where a tensor's parameters lie between uses.
enum class TensorHome : uint8_t {
  managed,  // where the memory manager places them
  caller,   // in memory of the program, always; nobody leases them
};

struct TensorSpec {
  std::string name;             // unique, for example "h.3.attn.c_attn.weight"
  std::vector<uint64_t> shape;  // row-major; at least one dimension, none zero
  DataType type = DataType::bf16;
  bool trainable = true;
  uint32_t group = 0;  // parameter group: which optimizer settings apply
  // The number of backward uses per micro-batch in which its gradient arises (tied tensors: 2).
  uint32_t backward_uses = 1;
  TensorHome home = TensorHome::managed;
  // With TensorHome::caller: the tensor in host memory, contiguous and in its own type.
  std::byte* memory = nullptr;
  // By what the first element's moments in codes are rounded (optimizer_cpu/moment_codes.h), a multiple of
  // 64; 0: by the tensor's place in the list. Parts of one tensor in several spaces have those of the whole
  // tensor.
  uint64_t rounding_place = 0;
  // Its update makes the step out of the whole matrix (OptimizerKind::muon): the shape has two dimensions.
  bool by_matrix = false;
  // A copy of a tensor that another part of the model has: the gradient norm of the whole counts that one.
  bool counted_elsewhere = false;

  uint64_t element_count() const {
    uint64_t count = 1;
    for (uint64_t extent : shape) count *= extent;
    return count;
  }
};

// Why an operation asks for tensors.
enum class UseKind : uint8_t {
  forward,    // part of a training pass; a backward use follows
  backward,   // also wants the gradients
  inference,  // evaluation or generation; no backward follows
};

}  // namespace terrace
