#include <terrace/optimizer_cpu/instruction_set.h>

#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/base/error.h>

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

TEST(InstructionSet, ReadsBackTheNamesItWrites) {
  for (const InstructionSet set : supported_instruction_sets()) {
    EXPECT_EQ(instruction_set_from_name(name_of(set)), set);
  }
}

TEST(InstructionSet, RejectsAnUnknownNameAndListsTheKnownOnes) {
  try {
    instruction_set_from_name("avx1024");
    FAIL() << "avx1024 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_STREQ(error.what(), "unknown instruction set \"avx1024\"\n  write scalar, avx2 or avx512");
  }
}

TEST(InstructionSet, RejectsAKnownNameThatThisMachineCannotRun) {
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    if (!is_supported(set)) {
      EXPECT_THROW(instruction_set_from_name(name_of(set)), Error);
    }
  }
}

}  // namespace
}  // namespace terrace::instruction_set_test
