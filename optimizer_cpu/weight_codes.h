// Frozen weights of few bits: codes of 4 or 8 bits with one fp32 number for every 64 of them. They are free
// functions over whole blocks, without threads or allocation, and give the same bits on every instruction
// set.
//
// A block is 64 neighbours of a weight, row-major; a last one that is not whole is filled with zeros. It is
//
//   largest = the largest magnitude of the block, fp32
//   near    = value * (1 / max(largest, 1e-38)), between -1 and 1
//   nf4     code = the number of kernels::nf4_boundary()s below `near`
//           value' = kernels::nf4_value(code) * largest
//   int8    code = near * 127 to the nearest integer, ties to even
//           value' = code * (largest * (1 / 127))
//
// each operation in fp32, rounded once; value' is then rounded to the type that it is written in. These are
// the numbers of terrace.torch.quantize_base: NF4 is that of QLoRA (Dettmers et al., arXiv:2305.14314,
// appendix E) and its codes are those of bitsandbytes.
//
// The codes of quantization.h are others, of what is trained: their scales are bf16, and coding twice loses
// nothing. A base is coded once, and its scales should lose nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// As what a weight is kept; none: as plain numbers.
enum class WeightCode : uint8_t { none, nf4, int8 };

inline constexpr std::array<std::string_view, 3> kWeightCodeNames = {"none", "nf4", "int8"};
constexpr std::string_view name_of(WeightCode code) {
  return kWeightCodeNames[static_cast<size_t>(code)];
}
constexpr std::optional<WeightCode> weight_code_from_name(std::string_view name) {
  for (size_t code = 0; code < kWeightCodeNames.size(); ++code)
    if (kWeightCodeNames[code] == name) return static_cast<WeightCode>(code);
  return std::nullopt;
}

inline constexpr uint64_t kCodedBlock = 64;  // weights

// A coded weight is words of 4 bytes, which no arithmetic may touch: of each block `largest`, and then its
// codes. With nf4 byte i has the codes 2 * i, in its upper half, and 2 * i + 1.
constexpr uint64_t words_of_block(WeightCode code) {
  return 1 + kCodedBlock / (code == WeightCode::nf4 ? 8 : 4);
}

struct CodedWeight {
  WeightCode code = WeightCode::none;
  uint64_t elements = 0;
  DataType type = DataType::fp32;  // of its numbers where they are computed with

  bool is_coded() const { return code != WeightCode::none; }
  uint64_t words() const { return divide_up(elements, kCodedBlock) * words_of_block(code); }
};

// Writes the words of whole blocks. `values` are finite; the last block may be short.
void encode_weights(WeightCode code, std::span<const float> values, std::byte* words);
// Writes `count` values, the first of a block. Addresses need no alignment; the two arrays do not overlap.
void decode_weights(InstructionSet set, WeightCode code, const std::byte* words, std::byte* values,
                    DataType type, uint64_t count);

// Fills the words of a weight from `first_word` on. `values` gives its elements, some of them twice where the
// words begin or end inside of a block.
void fill_words(const CodedWeight& weight, uint64_t first_word, std::span<float> words,
                FunctionRef<void(uint64_t first_element, std::span<float> values)> values);

// The arithmetic of an element, for all kernels.
namespace kernels {

constexpr float nf4_value(uint32_t code) {
  constexpr float values[16] = {-1.0f,
                                -0.6961928009986877f,
                                -0.5250730514526367f,
                                -0.39491748809814453f,
                                -0.28444138169288635f,
                                -0.18477343022823334f,
                                -0.09105003625154495f,
                                0.0f,
                                0.07958029955625534f,
                                0.16093020141124725f,
                                0.24611230194568634f,
                                0.33791524171829224f,
                                0.44070982933044434f,
                                0.5626170039176941f,
                                0.7229568362236023f,
                                1.0f};
  return values[code];
}
// The middle of the values of `code` and the next one.
constexpr float nf4_boundary(uint32_t code) {
  return (nf4_value(code) + nf4_value(code + 1)) / 2;
}

inline constexpr float kInt8Step = static_cast<float>(1.0 / 127);

// What all codes of a block are multiplied by.
constexpr float factor_of(WeightCode code, float largest) {
  return code == WeightCode::nf4 ? largest : largest * kInt8Step;
}
// The code of element `i` of a block as a number.
constexpr float code_value(WeightCode code, const std::byte* codes, uint64_t i) {
  if (code == WeightCode::int8) return static_cast<float>(static_cast<int8_t>(codes[i]));
  const auto pair = static_cast<uint32_t>(codes[i / 2]);
  return nf4_value(i % 2 == 0 ? pair >> 4 : pair & 15u);
}

}  // namespace kernels
}  // namespace terrace
