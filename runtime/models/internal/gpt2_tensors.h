// Which TensorId is what in a Gpt2, and the keys of its uses.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/assert.h>
#include <terrace/memory/tensor.h>

namespace terrace::gpt2 {

// A layer's tensors, in their order.
enum class LayerTensor : uint32_t {
  norm1_weight,
  norm1_bias,
  qkv_weight,
  qkv_bias,
  attention_weight,
  attention_bias,
  norm2_weight,
  norm2_bias,
  hidden_weight,
  hidden_bias,
  output_weight,
  output_bias,
};
inline constexpr uint32_t kLayerTensors = 12;
inline constexpr uint32_t kFirstLayerTensor = 2;

inline constexpr TensorId kTokenTable{0};
inline constexpr TensorId kPositionTable{1};
constexpr TensorId layer_tensor(uint32_t layer, LayerTensor tensor) {
  return TensorId{kFirstLayerTensor + layer * kLayerTensors + static_cast<uint32_t>(tensor)};
}
constexpr TensorId final_norm_weight(uint32_t layers) {
  return TensorId{kFirstLayerTensor + layers * kLayerTensors};
}
constexpr TensorId final_norm_bias(uint32_t layers) {
  return TensorId{index_of(final_norm_weight(layers)) + 1};
}

// The key of a use, "mb0/h.3.mlp.fc/forward", made without allocating.
class OperationKey {
 public:
  OperationKey(std::string_view prefix, std::string_view operation, std::string_view phase) {
    append(prefix);
    append(operation);
    append(phase);
  }
  OperationKey(std::string_view prefix, uint32_t layer, std::string_view operation, std::string_view phase) {
    append(prefix);
    append("h.");
    std::array<char, 10> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), layer).ptr;
    append({digits.data(), static_cast<size_t>(end - digits.data())});
    append(operation);
    append(phase);
  }
  operator std::string_view() const {
    return {text_.data(), size_};
  }  // NOLINT: implicit on purpose, a key is a text

 private:
  void append(std::string_view part) {
    TERRACE_ASSERT(size_ + part.size() <= text_.size(),
                   "the operation prefix is too long: " + std::string(part));
    std::copy(part.begin(), part.end(), text_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += part.size();
  }

  std::array<char, 128> text_;
  size_t size_ = 0;
};

}  // namespace terrace::gpt2
