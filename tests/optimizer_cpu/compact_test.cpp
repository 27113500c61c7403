// The compact form of the masters against the whole one: the same bits in every step, whatever the numbers.
#include <gtest/gtest.h>

#include <limits>

#include "instruction_set_cases.h"
#include "update_problem.h"

namespace terrace::compact_test {
namespace {

class CompactState : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(CompactState);

// Both forms of one problem, stepped together.
struct Pair {
  UpdateProblem whole, compact;

  Pair(const OptimizerSettings& settings, const Layout& layout, size_t count)
      : whole(settings, {layout.gradient, layout.parameter, layout.moment}, count, 1),
        compact(settings, layout, count, 1) {}

  void start_compact() {
    for (size_t i = 0; i < whole.count; ++i) compact.set_master(i, whole.master(i, false));
    compact.moments = whole.moments;
    compact.gradients = whole.gradients;
  }
  void step(InstructionSet set, uint64_t number) {
    compact.gradients = whole.gradients;
    const OptimizerStep constants = make_optimizer_step(whole.settings, number, 0.6f);
    whole.update(set, constants);
    compact.update(set, constants);
  }
  // All of it; of a moment that is NaN no bits are promised.
  void expect_same() const {
    for (size_t i = 0; i < whole.count; ++i) {
      ASSERT_TRUE(identical(whole.master(i, true), compact.master(i, true))) << "master " << i;
      ASSERT_TRUE(identical(whole.parameter(i), compact.parameter(i))) << "parameter " << i;
      for (size_t k = 0; k < whole.moments.size(); ++k) {
        ASSERT_TRUE(same(whole.moment(k, i), compact.moment(k, i))) << "moment " << k << " of " << i;
      }
    }
  }
};

template <typename Body>
void for_every_pair(size_t count, Body body) {
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      if (layout.form == MasterForm::whole) return;
      Pair pair(settings, layout, count);
      SCOPED_TRACE(pair.compact.name());
      body(pair);
    });
  }
}

TEST_P(CompactState, GivesTheBitsOfTheWholeFormOverTwentyFiveSteps) {
  std::mt19937 random(31);
  for_every_pair(83, [&](Pair& pair) {
    pair.whole.fill_state(random);
    pair.start_compact();
    for (uint64_t step = 1; step <= 25; ++step) {
      pair.whole.fill_gradients(random);
      pair.step(GetParam(), step);
      pair.expect_same();
      pair.compact.keep_parameters();
    }
  });
}

TEST_P(CompactState, GivesTheBitsOfTheWholeFormForAnyInputBits) {
  std::mt19937 random(32);
  for_every_pair(1001, [&](Pair& pair) {
    pair.whole.fill_with_any_bits(random);
    pair.start_compact();
    for (uint64_t step = 1; step <= 2; ++step) {
      pair.step(GetParam(), step);
      pair.expect_same();
      pair.compact.keep_parameters();
      pair.whole.fill_gradients(random);
    }
  });
}

TEST_P(CompactState, StartsFromTheSameParametersWhateverNanWasLoaded) {
  const uint32_t kNans[] = {0x7f800001u, 0xff800001u, 0x7fbfffffu, 0xffffffffu, 0x7fc00000u, 0x7fffffffu};
  for (const uint32_t bits : kNans) {
    UpdateProblem compact({}, {DataType::bf16, DataType::bf16, MomentType::fp32, MasterForm::remainder}, 1,
                          0);
    compact.set_master(0, std::bit_cast<float>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(compact.parameter(0)), (bits | 0x00400000u) & 0xffff0000u);
    EXPECT_TRUE(identical(compact.master(0, false), compact.parameter(0)));
  }
}

TEST(CompactStateDeathTest, RefusesWhatItCannotHold) {
  std::mt19937 random(33);
  UpdateProblem problem({}, {DataType::bf16, DataType::bf16, MomentType::fp32, MasterForm::remainder}, 4, 0);
  problem.fill_state(random);
  problem.fill_gradients(random);
  const OptimizerStep step = make_optimizer_step({}, 1);
  UpdateProblem fp16 = problem;
  fp16.layout.parameter = DataType::fp16;
  EXPECT_DEATH(fp16.update(InstructionSet::scalar, step), "fp16 parameters are no part of such masters");
  EXPECT_DEATH(split_tiles(InstructionSet::scalar, RecordLayout{}, nullptr, nullptr, nullptr, 1),
               "canonical already");
}

}  // namespace
}  // namespace terrace::compact_test
