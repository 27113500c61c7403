// Inputs and comparisons that the tests of the compute folder share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/runtime/compute/counter_random.h>

namespace terrace::testing {

inline std::vector<float> random_values(uint64_t count, uint64_t stream, float deviation = 1.0f) {
  std::vector<float> values(count);
  fill_normal({.seed = 7, .stream = stream}, 0, deviation, values);
  return values;
}

inline std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> halves;
  for (const float value : values) halves.push_back(to_bf16(value));
  return halves;
}

inline std::vector<float> as_floats(const std::vector<Bf16>& values) {
  std::vector<float> floats;
  for (const Bf16 value : values) floats.push_back(to_float(value));
  return floats;
}

// |actual - expected| <= tolerance * (1 + |expected|) for every element.
inline void expect_near(const std::vector<float>& actual, const std::vector<double>& expected,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), tolerance * (1.0 + std::abs(expected[i])))
        << what << " at " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

// One test for each instruction set of this machine.
class ForEachInstructionSet : public ::testing::TestWithParam<InstructionSet> {};

inline std::string set_name(const ::testing::TestParamInfo<InstructionSet>& info) {
  return std::string(name_of(info.param));
}

}  // namespace terrace::testing
