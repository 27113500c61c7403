// The specification of the codes: every other implementation must give these bits.
#include <terrace/optimizer_cpu/moment_codes.h>

#include <cstring>
#include <string>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/internal/moment_kernels.h>

namespace terrace {
namespace kernels {
namespace {

uint8_t byte_at(const std::byte* codes, size_t i) {
  return std::to_integer<uint8_t>(codes[i]);
}

// The highest bits of a block's codes.
uint64_t top_bits(const std::byte* codes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < kMomentBlock; ++i) bits |= static_cast<uint64_t>(byte_at(codes, i) >> 7) << i;
  return bits;
}

uint32_t largest_of(const float* values) {
  uint32_t largest = 0;
  for (size_t i = 0; i < kMomentBlock; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  return largest;
}

// The codes of one moment, without bits of scales. `sign_bit` is their sign's place, or 8 for none.
struct Codes {
  MomentCode code;
  uint32_t sign_bit;

  void decode(const std::byte* from, uint32_t scale_bits, float* to) const {
    const float scale = std::bit_cast<float>(scale_bits);
    for (size_t i = 0; i < kMomentBlock; ++i) {
      const uint32_t byte = byte_at(from, i);
      to[i] = code.value_of(byte & code.levels(), byte >> sign_bit & 1u, scale);
    }
  }
  // Returns the bits of the scale. `block_random` is null for rounding to the nearest.
  uint32_t encode(const float* from, const uint64_t* block_random, std::byte* to) const {
    std::memset(to, 0, kMomentBlock);
    const uint32_t scale_bits = code.scale_of(largest_of(from));
    if (!MomentCode::codes(scale_bits)) return scale_bits;
    const float inverse_scale = MomentCode::inverse_of(scale_bits);
    for (uint32_t i = 0; i < kMomentBlock; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(from[i]);
      const uint32_t r =
          block_random == nullptr ? code.half() : code.rounding_of(random_of(*block_random, i));
      const uint32_t magnitude = code.code_of(bits & 0x7fffffffu, inverse_scale, r);
      to[i] = std::byte(static_cast<uint8_t>(magnitude | (bits >> 31) << sign_bit));
    }
    return scale_bits;
  }
};

constexpr Codes kFirst{MomentCode(false), 7};
constexpr Codes kSecond{MomentCode(false), 8};
constexpr Codes kAlone{MomentCode(true), 6};

void set_top_bits(std::byte* codes, uint64_t bits) {
  for (size_t i = 0; i < kMomentBlock; ++i)
    codes[i] |= std::byte(static_cast<uint8_t>((bits >> i & 1u) << 7));
}

void decode_block(std::array<const std::byte*, 2> codes, std::array<float*, 2> values) {
  if (codes[1] == nullptr)
    return kAlone.decode(codes[0], static_cast<uint32_t>(top_bits(codes[0])), values[0]);
  const uint64_t scales = top_bits(codes[1]);
  kFirst.decode(codes[0], static_cast<uint32_t>(scales >> 32), values[0]);
  kSecond.decode(codes[1], static_cast<uint32_t>(scales), values[1]);
}

// `randoms` are those of the moments, or null for rounding to the nearest.
void encode_block(std::array<const float*, 2> values, const uint64_t* randoms,
                  std::array<std::byte*, 2> codes) {
  if (codes[1] == nullptr) return set_top_bits(codes[0], kAlone.encode(values[0], randoms, codes[0]));
  const uint64_t first = kFirst.encode(values[0], randoms, codes[0]);
  const uint64_t second = kSecond.encode(values[1], randoms != nullptr ? randoms + 1 : nullptr, codes[1]);
  set_top_bits(codes[1], first << 32 | second);
}

template <typename T>
std::array<T*, 2> after(std::array<T*, 2> at, size_t elements) {
  return {at[0] + elements, at[1] != nullptr ? at[1] + elements : nullptr};
}

void decode(std::array<const std::byte*, 2> codes, size_t count, std::array<float*, 2> values) {
  for (size_t first = 0; first < count; first += kMomentBlock)
    decode_block(after(codes, first), after(values, first));
}

void encode(std::array<const float*, 2> values, size_t count, const Chance* chance,
            std::array<std::byte*, 2> codes) {
  for (size_t first = 0; first < count; first += kMomentBlock) {
    if (chance == nullptr) {
      encode_block(after(values, first), nullptr, after(codes, first));
      continue;
    }
    const uint64_t random = random_of_block(chance->key, (chance->place + first) / kMomentBlock);
    const std::array randoms{random, random_of_second(random)};
    encode_block(after(values, first), randoms.data(), after(codes, first));
  }
}

}  // namespace

const MomentKernels kScalarMoments = {.decode = decode, .encode = encode};

const MomentKernels* find_moment_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarMoments : find_vector_moment_kernels(set);
}

}  // namespace kernels

namespace {

const kernels::MomentKernels& kernels_of(InstructionSet set, size_t count) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  TERRACE_ASSERT(count % kMomentBlock == 0, std::to_string(count) + " elements are no whole blocks");
  return *kernels::find_moment_kernels(set);
}

template <typename Byte>
std::array<Byte*, 2> codes_at(const RecordLayout& layout, Byte* tile, uint64_t element) {
  TERRACE_ASSERT(layout.has_codes(), "the moments are no codes");
  const auto at = [&](uint32_t moment) { return tile + layout.moment_offset(moment) + element; };
  return {at(0), layout.moment_count > 1 ? at(1) : nullptr};
}

// The numbers of the blocks of a tile that have elements of a run.
struct Blocks {
  uint64_t first, count;
  std::array<std::vector<float>, 2> numbers;

  Blocks(const RecordLayout& layout, const std::byte* tile, uint64_t first_element, uint64_t elements)
      : first(first_element / kMomentBlock * kMomentBlock),
        count(round_up(first_element + elements, kMomentBlock) - first),
        numbers{std::vector<float>(count), std::vector<float>(count)} {
    decode_blocks(best_instruction_set(), codes_at(layout, tile, first), count, at());
  }
  std::array<float*, 2> at() { return {numbers[0].data(), numbers[1].data()}; }
};

}  // namespace

void decode_blocks(InstructionSet set, std::array<const std::byte*, 2> codes, size_t count,
                   std::array<float*, 2> values) {
  kernels_of(set, count).decode(codes, count, values);
}

void encode_blocks(InstructionSet set, std::array<const float*, 2> values, size_t count,
                   std::optional<Chance> chance, std::array<std::byte*, 2> codes) {
  TERRACE_ASSERT(!chance || chance->place % kMomentBlock == 0, "codes from the middle of a block on");
  kernels_of(set, count).encode(values, count, chance ? &*chance : nullptr, codes);
}

void decode_moments(InstructionSet set, const RecordLayout& layout, const std::byte* tile,
                    std::array<float*, 2> values) {
  decode_blocks(set, codes_at(layout, tile, 0), kTileElements, values);
}

void encode_moments(InstructionSet set, const RecordLayout& layout, std::array<const float*, 2> values,
                    std::byte* tile) {
  encode_blocks(set, values, kTileElements, {}, codes_at(layout, tile, 0));
}

void read_moment_codes(const RecordLayout& layout, const std::byte* tile, uint32_t moment, uint64_t first,
                       std::span<float> values) {
  Blocks blocks(layout, tile, first, values.size());
  std::copy_n(blocks.at()[moment] + (first - blocks.first), values.size(), values.begin());
}

void write_moment_codes(const RecordLayout& layout, std::byte* tile, uint32_t moment, uint64_t first,
                        std::span<const float> values) {
  Blocks blocks(layout, tile, first, values.size());
  std::copy_n(values.begin(), values.size(), blocks.at()[moment] + (first - blocks.first));
  encode_blocks(best_instruction_set(), {blocks.at()[0], blocks.at()[1]}, blocks.count, {},
                codes_at(layout, tile, blocks.first));
}

}  // namespace terrace
