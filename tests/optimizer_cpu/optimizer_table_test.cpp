#include <terrace/optimizer_cpu/optimizer_table.h>

#include <gtest/gtest.h>

#include <set>
#include <string>

#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/optimizer_cpu/update_kernels.h>

#include "support/enum_values.h"
#include "update_problem.h"

namespace terrace::optimizer_table_test {
namespace {

uint32_t named_moments(const OptimizerRow& row) {
  uint32_t count = 0;
  for (const std::string_view moment : row.moments) count += moment.empty() ? 0 : 1;
  return count;
}

TEST(OptimizerTable, NamesEveryMomentThatRecordsKeep) {
  for (const OptimizerRow& row : kOptimizers) {
    EXPECT_EQ(named_moments(row), moment_count(row.kind, row.has_momentum ? 0.9 : 0)) << row.word;
    EXPECT_EQ(row.has_momentum, moment_count(row.kind, 0) != moment_count(row.kind, 0.9)) << row.word;
  }
}

TEST(OptimizerTable, HasDefaultsThatAStepCanBeMadeOf) {
  for (const OptimizerRow& row : kOptimizers) {
    OptimizerSettings settings;
    settings.kind = row.kind;
    settings.lr = row.lr, settings.beta2 = row.beta2, settings.eps = row.eps;
    EXPECT_EQ(why_not(settings), "") << row.word;
  }
}

// A setting that a row says it lacks changes nothing of a step, and one that it has does.
TEST(OptimizerTable, SaysWhichSettingsAFormulaHas) {
  for (const OptimizerRow& row : kOptimizers) {
    OptimizerSettings plain;
    plain.kind = row.kind;
    plain.weight_decay = 0.1;
    plain.adamw_mode = row.decays_apart;
    const OptimizerStep step = make_optimizer_step(plain, 3);
    OptimizerSettings other = plain;
    other.bias_correction = false;
    EXPECT_EQ(make_optimizer_step(other, 3).step_size != step.step_size, row.has_bias_correction) << row.word;
    other = plain;
    other.momentum = 0.9;
    EXPECT_EQ(make_optimizer_step(other, 3).has_momentum, row.has_momentum) << row.word;
    EXPECT_EQ(step.decoupled_decay, row.decays_apart) << row.word;
  }
}

// The bit tests go over these settings.
TEST(OptimizerTable, HasNoFormulaThatTheTestsOfBitsLeaveOut) {
  std::set<OptimizerKind> tested = {OptimizerKind::muon};  // of two parts: muon_test.cpp
  for (const OptimizerSettings& settings : every_settings()) tested.insert(settings.kind);
  EXPECT_EQ(tested.size(), testing::enumerator_count<OptimizerKind>());
}

TEST(OptimizerTable, HasAKernelForEveryRule) {
  static_assert(kernels::kRules == testing::enumerator_count<kernels::Rule>());
  for (const InstructionSet set : {InstructionSet::scalar, InstructionSet::avx2, InstructionSet::avx512}) {
    if (!kernels::compiled_in(set)) continue;
    for (const kernels::UpdateKernel kernel : *kernels::find_update_kernels(set)) {
      EXPECT_NE(kernel, nullptr) << name_of(set);
    }
  }
}

TEST(OptimizerTable, HasEveryNameOnce) {
  std::set<std::string_view> words, keys;
  for (const OptimizerRow& row : kOptimizers) {
    EXPECT_TRUE(words.insert(row.word).second && keys.insert(row.key).second) << row.word;
    EXPECT_EQ(optimizer_of_word(row.word), &row);
  }
  EXPECT_EQ(optimizer_of_word("AdamW"), nullptr);
  EXPECT_EQ(row_of(OptimizerType::sgd).key, "SGD");
  static_assert(kOptimizers.size() == testing::enumerator_count<OptimizerType>());
}

}  // namespace
}  // namespace terrace::optimizer_table_test
