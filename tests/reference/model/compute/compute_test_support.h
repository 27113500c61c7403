// Inputs and comparisons that the tests of the compute folder share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/compute/host_ops.h>

#include "support/rounded_values.h"
#include "support/work_memory.h"

namespace terrace::testing {

inline std::vector<float> random_values(uint64_t count, uint64_t stream, float deviation = 1.0f) {
  std::vector<float> values(count);
  fill_normal({.seed = 7, .stream = stream}, 0, deviation, values);
  return values;
}

template <typename T>
ParameterView view(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), type_of(T{})};
}
template <typename T>
GradientTarget into(std::vector<T>& values, bool accumulate = false) {
  return {{reinterpret_cast<std::byte*>(values.data()), accumulate}, type_of(T{})};
}

inline std::vector<int32_t> random_tokens(uint64_t count, uint64_t vocabulary, uint64_t stream) {
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random_bits({.seed = 5, .stream = stream}, i) % vocabulary));
  }
  return tokens;
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

class Operation : public ForEachInstructionSet {
 protected:
  Workers workers_{2};
  HostOps ops_{workers_, GetParam()};
  WorkMemory work_{64 * kMiB};
};

}  // namespace terrace::testing
