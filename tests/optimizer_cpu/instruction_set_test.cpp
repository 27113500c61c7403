#include <terrace/optimizer_cpu/instruction_set.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace::instruction_set_test {
namespace {

TEST(InstructionSet, AlwaysOffersTheScalarReferenceFirst) {
  ASSERT_FALSE(supported_instruction_sets().empty());
  EXPECT_EQ(supported_instruction_sets().front(), InstructionSet::scalar);
  EXPECT_TRUE(std::ranges::is_sorted(supported_instruction_sets()));
}

TEST(InstructionSet, TakesTheFastestSupportedOneAsBest) {
  EXPECT_EQ(best_instruction_set(), supported_instruction_sets().back());
  EXPECT_TRUE(is_supported(best_instruction_set()));
}

#if defined(__x86_64__)
TEST(InstructionSet, AgreesWithTheCompilersViewOfThisProcessor) {
  EXPECT_EQ(is_supported(InstructionSet::avx2),
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"));
  EXPECT_EQ(is_supported(InstructionSet::avx512),
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"));
}
#endif

}  // namespace
}  // namespace terrace::instruction_set_test
