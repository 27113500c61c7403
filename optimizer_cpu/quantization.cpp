#include <terrace/optimizer_cpu/quantization.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/elements.h>
#include <terrace/optimizer_cpu/internal/quantization_kernels.h>

namespace terrace {
namespace kernels {
namespace {

template <typename T>
uint16_t quantize_block(const std::byte* values, uint32_t bits, int8_t* codes) {
  uint32_t magnitude = 0;
  for (size_t i = 0; i < kQuantizedBlock; ++i)
    magnitude = std::max(magnitude, std::bit_cast<uint32_t>(load_element<T>(values, i)) & 0x7fffffffu);
  const uint16_t scale = scale_of(magnitude, static_cast<DataType>(kIndexOf<T>));
  if (scale == 0 || is_nan_scale(scale)) {
    std::memset(codes, 0, kQuantizedBlock);
    return scale;
  }
  const auto levels = static_cast<float>(levels_of(bits));
  const float inverse_step = levels / largest_of(scale);
  for (size_t i = 0; i < kQuantizedBlock; ++i)
    codes[i] = static_cast<int8_t>(code_of(load_element<T>(values, i), inverse_step, levels));
  return scale;
}

template <typename T>
void dequantize_block(const int8_t* codes, float step, std::byte* values) {
  for (size_t i = 0; i < kQuantizedBlock; ++i)
    store_element<T>(values, i, static_cast<float>(codes[i]) * step);
}

}  // namespace

const QuantizationKernels kScalarQuantization = {
    .quantize = {quantize_block<float>, quantize_block<Bf16>, quantize_block<Fp16>},
    .dequantize = {dequantize_block<float>, dequantize_block<Bf16>, dequantize_block<Fp16>},
};

const QuantizationKernels* find_quantization_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarQuantization : find_vector_quantization_kernels(set);
}

}  // namespace kernels

namespace {

constexpr uint64_t kHalfBlock = kQuantizedBlock / 2;
using Codes = std::array<int8_t, kQuantizedBlock>;

const kernels::QuantizationKernels& kernels_of(InstructionSet set, uint32_t bits, uint64_t count) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  TERRACE_ASSERT(bits == 8 || bits == 4, std::to_string(bits) + " bits");
  TERRACE_ASSERT(count % kQuantizedBlock == 0, std::to_string(count) + " elements are no whole blocks");
  return *kernels::find_quantization_kernels(set);
}

void pack(const Codes& codes, std::byte* to) {
  for (size_t i = 0; i < kHalfBlock; ++i)
    to[i] = static_cast<std::byte>((codes[i] & 15) | (codes[i + kHalfBlock] & 15) << 4);
}

void unpack(const std::byte* from, Codes& codes) {
  for (size_t i = 0; i < kHalfBlock; ++i) {
    const auto both = static_cast<uint8_t>(from[i]);
    codes[i] = static_cast<int8_t>(static_cast<int8_t>(both << 4) >> 4);
    codes[i + kHalfBlock] = static_cast<int8_t>(static_cast<int8_t>(both) >> 4);
  }
}

void fill_with_nan(std::byte* values, DataType type) {
  constexpr float kNan = std::bit_cast<float>(0x7fc00000u);
  for (size_t i = 0; i < kQuantizedBlock; ++i) {
    if (type == DataType::fp32) kernels::store_element<float>(values, i, kNan);
    if (type == DataType::bf16) kernels::store_element<Bf16>(values, i, kNan);
    if (type == DataType::fp16) kernels::store_element<Fp16>(values, i, kNan);
  }
}

void dequantize_codes(const kernels::QuantizationKernels& table, uint32_t bits, uint16_t scale,
                      const int8_t* codes, std::byte* values, DataType type) {
  if (kernels::is_nan_scale(scale)) return fill_with_nan(values, type);
  const float step = kernels::largest_of(scale) / static_cast<float>(kernels::levels_of(bits));
  table.dequantize[kernels::index_of(type)](codes, step, values);
}

}  // namespace

void quantize(InstructionSet set, uint32_t bits, const std::byte* values, DataType type, uint64_t count,
              std::byte* codes) {
  const kernels::QuantizationKernels& table = kernels_of(set, bits, count);
  const uint64_t value_bytes = kQuantizedBlock * bytes_of(type),
                 code_bytes = quantized_bytes(kQuantizedBlock, bits);
  Codes block;
  for (; count > 0; count -= kQuantizedBlock, values += value_bytes, codes += code_bytes) {
    const uint16_t scale = table.quantize[kernels::index_of(type)](values, bits, block.data());
    std::memcpy(codes, &scale, sizeof scale);
    if (bits == 4) {
      pack(block, codes + sizeof scale);
    } else {
      std::memcpy(codes + sizeof scale, block.data(), block.size());
    }
  }
}

void dequantize(InstructionSet set, uint32_t bits, const std::byte* codes, std::byte* values, DataType type,
                uint64_t count) {
  const kernels::QuantizationKernels& table = kernels_of(set, bits, count);
  const uint64_t value_bytes = kQuantizedBlock * bytes_of(type),
                 code_bytes = quantized_bytes(kQuantizedBlock, bits);
  Codes block;
  for (; count > 0; count -= kQuantizedBlock, values += value_bytes, codes += code_bytes) {
    uint16_t scale = 0;
    std::memcpy(&scale, codes, sizeof scale);
    if (bits == 4) {
      unpack(codes + sizeof scale, block);
    } else {
      std::memcpy(block.data(), codes + sizeof scale, block.size());
    }
    dequantize_codes(table, bits, scale, block.data(), values, type);
  }
}

void round_to_quantized(InstructionSet set, uint32_t bits, const std::byte* values, DataType type,
                        std::byte* rounded, DataType rounded_type, uint64_t count) {
  const uint64_t whole = count / kQuantizedBlock * kQuantizedBlock, rest = count - whole;
  const kernels::QuantizationKernels& table = kernels_of(set, bits, whole);
  const auto round_block = [&](const std::byte* from, std::byte* to) {
    Codes block;
    const uint16_t scale = table.quantize[kernels::index_of(type)](from, bits, block.data());
    dequantize_codes(table, bits, scale, block.data(), to, rounded_type);
  };
  for (uint64_t first = 0; first < whole; first += kQuantizedBlock)
    round_block(values + first * bytes_of(type), rounded + first * bytes_of(rounded_type));
  if (rest == 0) return;
  std::array<std::byte, kQuantizedBlock * sizeof(float)> from{}, to;
  std::memcpy(from.data(), values + whole * bytes_of(type), rest * bytes_of(type));
  round_block(from.data(), to.data());
  std::memcpy(rounded + whole * bytes_of(rounded_type), to.data(), rest * bytes_of(rounded_type));
}

}  // namespace terrace
