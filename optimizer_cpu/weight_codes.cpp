#include <terrace/optimizer_cpu/weight_codes.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

constexpr uint64_t kBlocksAtOnce = 64;

// The numbers of both codes of a byte, which are found faster than one after the other.
constexpr auto kPairs = [] {
  std::array<std::array<float, 2>, 256> pairs{};
  for (uint32_t byte = 0; byte < 256; ++byte)
    pairs[byte] = {kernels::nf4_value(byte >> 4), kernels::nf4_value(byte & 15u)};
  return pairs;
}();

constexpr auto kBoundaries = [] {
  std::array<float, 15> boundaries{};
  for (uint32_t code = 0; code < boundaries.size(); ++code) boundaries[code] = kernels::nf4_boundary(code);
  return boundaries;
}();

// A search without branches, which nobody could predict.
uint32_t nf4_code(float near) {
  uint32_t code = 0;
  for (uint32_t step = 8; step > 0; step /= 2) code += kBoundaries[code + step - 1] < near ? step : 0;
  return code;
}

uint8_t int8_code(float near) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
  return static_cast<uint8_t>(static_cast<int8_t>((near * 127.0f + magic) - magic));
}

void encode_block(WeightCode code, const float* values, std::byte* words) {
  float largest = 0;
  for (uint64_t i = 0; i < kCodedBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float inverse = 1.0f / std::max(largest, 1e-38f);
  uint8_t codes[kCodedBlock];
  for (uint64_t i = 0; i < kCodedBlock; ++i) {
    const float near = std::clamp(values[i] * inverse, -1.0f, 1.0f);
    codes[i] = code == WeightCode::nf4 ? static_cast<uint8_t>(nf4_code(near)) : int8_code(near);
  }
  if (code == WeightCode::nf4) {
    for (uint64_t i = 0; i < kCodedBlock / 2; ++i)
      codes[i] = static_cast<uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
  }
  std::memcpy(words, &largest, sizeof largest);
  std::memcpy(words + sizeof largest, codes, (words_of_block(code) - 1) * sizeof(float));
}

void decode_block(WeightCode code, const std::byte* words, float* values) {
  float largest;
  std::memcpy(&largest, words, sizeof largest);
  const std::byte* const codes = words + sizeof largest;
  if (code == WeightCode::nf4) {
    for (uint64_t i = 0; i < kCodedBlock / 2; ++i)
      std::memcpy(values + 2 * i, kPairs[static_cast<uint8_t>(codes[i])].data(), sizeof kPairs[0]);
  } else {
    for (uint64_t i = 0; i < kCodedBlock; ++i) values[i] = kernels::code_value(code, codes, i);
  }
  const float factor = kernels::factor_of(code, largest);
  for (uint64_t i = 0; i < kCodedBlock; ++i) values[i] *= factor;
}

}  // namespace

void encode_weights(WeightCode code, std::span<const float> values, std::byte* words) {
  const uint64_t block_bytes = words_of_block(code) * sizeof(float);
  for (; !values.empty(); words += block_bytes) {
    float block[kCodedBlock] = {};
    const size_t count = std::min<size_t>(values.size(), kCodedBlock);
    std::copy_n(values.begin(), count, block);
    encode_block(code, block, words);
    values = values.subspan(count);
  }
}

void decode_weights(InstructionSet set, WeightCode code, const std::byte* words, std::byte* values,
                    DataType type, uint64_t count) {
  constexpr uint64_t kAtOnce = 4 * kCodedBlock;
  alignas(64) float wide[kAtOnce];
  const uint64_t block_bytes = words_of_block(code) * sizeof(float);
  while (count > 0) {
    const uint64_t some = std::min(count, kAtOnce);
    for (uint64_t first = 0; first < some; first += kCodedBlock, words += block_bytes)
      decode_block(code, words, wide + first);
    convert_from_float(set, wide, values, type, some);
    values += some * bytes_of(type);
    count -= some;
  }
}

void fill_words(const CodedWeight& weight, uint64_t first_word, std::span<float> words,
                FunctionRef<void(uint64_t, std::span<float>)> values) {
  const uint64_t of_block = words_of_block(weight.code);
  float elements[kBlocksAtOnce * kCodedBlock];
  float coded[kBlocksAtOnce * words_of_block(WeightCode::int8)];
  while (!words.empty()) {
    const uint64_t block = first_word / of_block, skipped = first_word % of_block;
    const uint64_t blocks = std::min(kBlocksAtOnce, divide_up(skipped + words.size(), of_block));
    const uint64_t first = block * kCodedBlock;
    const std::span<float> some(elements, std::min(blocks * kCodedBlock, weight.elements - first));
    values(first, some);
    encode_weights(weight.code, some, reinterpret_cast<std::byte*>(coded));
    const uint64_t count = std::min<uint64_t>(words.size(), blocks * of_block - skipped);
    std::memcpy(words.data(), coded + skipped, count * sizeof(float));
    words = words.subspan(count);
    first_word += count;
  }
}

}  // namespace terrace
