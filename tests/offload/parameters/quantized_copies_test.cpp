#include <terrace/offload/parameters/quantized_copies.h>

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include <terrace/optimizer_cpu/quantization.h>

namespace terrace::quantized_copies_test {
namespace {

constexpr uint64_t kCount = 8 * kQuantizedBlock;

std::vector<std::byte> values() {
  std::vector<std::byte> bytes(kCount * sizeof(Bf16));
  for (uint64_t i = 0; i < kCount; ++i) {
    const Bf16 value = to_bf16(static_cast<float>(i % 17) - 8.0f);
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  }
  round_to_quantized(InstructionSet::scalar, 8, bytes.data(), DataType::bf16, bytes.data(), DataType::bf16,
                     kCount);
  return bytes;
}

TEST(QuantizedCopies, GoThereAndBackBehindTheirEvents) {
  QuantizedCopies copies(best_instruction_set(), 8, false);
  const std::vector<std::byte> there = values();
  std::vector<std::byte> codes(quantized_bytes(kCount, 8)), back(there.size());
  Event ready, made, arrived;
  ready.begin();
  made.begin();
  arrived.begin();
  copies.to_codes(there.data(), DataType::bf16, kCount, codes.data(), &ready, made);
  copies.from_codes(codes.data(), DataType::bf16, kCount, back.data(), &made, arrived);
  EXPECT_FALSE(made.done());
  ready.complete_one();
  arrived.wait();
  EXPECT_EQ(back, there);
}

TEST(QuantizedCopies, PassAFailureOnAndWriteNothing) {
  QuantizedCopies copies(best_instruction_set(), 8, false);
  const std::vector<std::byte> there = values();
  const std::vector<std::byte> untouched(quantized_bytes(kCount, 8), std::byte{0x5a});
  std::vector<std::byte> codes = untouched;
  Event ready, made;
  ready.begin();
  made.begin();
  ready.complete_one(std::make_exception_ptr(std::runtime_error("lost")));
  copies.to_codes(there.data(), DataType::bf16, kCount, codes.data(), &ready, made);
  EXPECT_THROW(made.wait(), std::runtime_error);
  EXPECT_EQ(codes, untouched);
}

TEST(QuantizedCopies, OfADryRunAreOverAtOnce) {
  QuantizedCopies copies(best_instruction_set(), 8, true);
  Event made;
  made.begin();
  copies.to_codes(nullptr, DataType::bf16, kCount, nullptr, nullptr, made);
  EXPECT_TRUE(made.done());
}

}  // namespace
}  // namespace terrace::quantized_copies_test
