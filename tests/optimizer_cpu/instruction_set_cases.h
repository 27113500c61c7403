// A test fixture that runs once per instruction set and says so when this machine cannot run one.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class EveryInstructionSet : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "this machine has no " << name_of(GetParam());
  }
};

inline std::string instruction_set_case(const ::testing::TestParamInfo<InstructionSet>& info) {
  return std::string(name_of(info.param));
}

#define TERRACE_ON_EVERY_INSTRUCTION_SET(FIXTURE)                                                           \
  INSTANTIATE_TEST_SUITE_P(                                                                                 \
      On, FIXTURE, ::testing::Values(InstructionSet::scalar, InstructionSet::avx2, InstructionSet::avx512), \
      instruction_set_case)

}  // namespace terrace
