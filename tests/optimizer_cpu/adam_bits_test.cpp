// What must not change a single bit of the Adam update: the instruction set, the layout, how the elements are
// cut.
#include <gtest/gtest.h>

#include "adam_problem.h"
#include "instruction_set_cases.h"

namespace terrace {
namespace {

class AdamBits : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(AdamBits);

void expect_same_bits(const AdamProblem& a, const AdamProblem& b) {
  for (size_t i = 0; i < a.count; ++i) {
    const size_t at = a.shift + i;
    ASSERT_TRUE(same(a.master[at], b.master[at]))
        << "master " << i << ": " << a.master[at] << ", " << b.master[at];
    ASSERT_TRUE(same(a.exp_avg[at], b.exp_avg[at])) << "exp_avg " << i;
    ASSERT_TRUE(same(a.exp_avg_sq[at], b.exp_avg_sq[at])) << "exp_avg_sq " << i;
    ASSERT_TRUE(same(a.parameter(i), b.parameter(i))) << "parameter " << i;
  }
}

TEST_P(AdamBits, AreThoseOfTheScalarReferenceForEverySizeAndSetting) {
  std::mt19937 random(11);
  for (size_t count = 1; count <= 70; ++count) {
    for (const OptimizerSettings& settings : every_settings()) {
      for_every_layout([&](DataType gradient, DataType parameter, bool over_gradients) {
        AdamProblem reference(count, gradient, parameter, count % 5, over_gradients);
        reference.fill_state(random);
        AdamProblem problem = reference;
        SCOPED_TRACE(problem.name() + ", " + name_of(settings));
        for (uint64_t step = 1; step <= 3; ++step) {
          std::mt19937 same_gradients(static_cast<uint32_t>(step));
          reference.fill_gradients(same_gradients);
          problem.gradients = reference.gradients;
          const OptimizerStep constants = make_optimizer_step(settings, step, 0.731f);
          reference.update(InstructionSet::scalar, constants);
          problem.update(GetParam(), constants);
          expect_same_bits(reference, problem);
        }
        ASSERT_TRUE(problem.guards_are_whole());
      });
    }
  }
}

TEST_P(AdamBits, AreThoseOfTheScalarReferenceForAnyInputBits) {
  std::mt19937 random(12);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](DataType gradient, DataType parameter, bool over_gradients) {
      AdamProblem reference(20011, gradient, parameter, 1, over_gradients);
      reference.fill_with_any_bits(random);
      AdamProblem problem = reference;
      SCOPED_TRACE(problem.name() + ", " + name_of(settings));
      const OptimizerStep step = make_optimizer_step(settings, 7, 1.0f / 3);
      reference.update(InstructionSet::scalar, step);
      problem.update(GetParam(), step);
      expect_same_bits(reference, problem);
    });
  }
}

// A record of four tiles with gradients and parameters beside it.
struct Record {
  static constexpr size_t kTiles = 4;
  static constexpr size_t kElements = kTiles * kTileElements;
  DataType type;
  std::vector<float> tiles = std::vector<float>(3 * kElements);
  std::vector<std::byte> gradients;

  Record(DataType element_type, const AdamProblem& from)
      : type(element_type), gradients(kElements * bytes_of(type)) {
    for (size_t i = 0; i < kElements; ++i) {
      at(0, i) = from.master[i];
      at(1, i) = from.exp_avg[i];
      at(2, i) = from.exp_avg_sq[i];
      set_element(gradients.data(), type, i, from.gradient(i));
    }
  }
  float& at(size_t array, size_t i) {
    return tiles[(i / kTileElements * 3 + array) * kTileElements + i % kTileElements];
  }
  void update(InstructionSet set, const OptimizerStep& step, size_t first, size_t count) {
    update_tiles(set, step,
                 {.record = reinterpret_cast<std::byte*>(tiles.data()),
                  .gradients = gradients.data(),
                  .gradient_type = type,
                  .parameters = gradients.data(),
                  .parameter_type = type,
                  .first_element = first,
                  .element_count = count});
  }
};

// Compares elements [first, end) with those of `updated` and all others with those of `before`.
void expect_record(Record& record, size_t first, size_t end, const AdamProblem& before,
                   const AdamProblem& updated) {
  for (size_t i = 0; i < Record::kElements; ++i) {
    const bool inside = i >= first && i < end;
    const AdamProblem& expected = inside ? updated : before;
    ASSERT_TRUE(same(record.at(0, i), expected.master[i])) << "master " << i;
    ASSERT_TRUE(same(record.at(1, i), expected.exp_avg[i])) << "exp_avg " << i;
    ASSERT_TRUE(same(record.at(2, i), expected.exp_avg_sq[i])) << "exp_avg_sq " << i;
    const float at_gradient = element(record.gradients.data(), record.type, i);
    ASSERT_TRUE(same(at_gradient, inside ? expected.parameter(i) : expected.gradient(i)))
        << "parameter " << i;
  }
}

TEST_P(AdamBits, AreTheSameInTilesAndReachNoElementOutsideTheRun) {
  for (const DataType type : kEveryType) {
    std::mt19937 random(13);
    AdamProblem before(Record::kElements, type, type, 0, false);
    before.fill_state(random);
    before.fill_gradients(random);
    const OptimizerStep step = make_optimizer_step({.weight_decay = 0.1}, 2, 0.5f);
    AdamProblem updated = before;
    updated.update(InstructionSet::scalar, step);
    const size_t tile = kTileElements;
    const std::pair<size_t, size_t> runs[] = {{0, Record::kElements},
                                              {0, 0},
                                              {0, 1},
                                              {tile - 1, tile + 1},
                                              {tile, 2 * tile},
                                              {5, 3 * tile + 77},
                                              {2 * tile + 64, 2 * tile + 192},
                                              {3 * tile + 1, 4 * tile},
                                              {4 * tile, 4 * tile}};
    for (const auto& [first, end] : runs) {
      SCOPED_TRACE("elements " + std::to_string(first) + " to " + std::to_string(end));
      Record record(type, before);
      record.update(GetParam(), step, first, end - first);
      expect_record(record, first, end, before, updated);
    }
  }
}

TEST_P(AdamBits, DoNotDependOnHowARecordIsCutIntoSegments) {
  std::mt19937 random(14);
  AdamProblem before(Record::kElements, DataType::bf16, DataType::bf16, 0, false);
  before.fill_state(random);
  before.fill_gradients(random);
  const OptimizerStep step = make_optimizer_step({.weight_decay = 0.1, .adamw_mode = false}, 2, 0.5f);
  AdamProblem updated = before;
  updated.update(InstructionSet::scalar, step);
  for (int round = 0; round < 5; ++round) {
    Record record(DataType::bf16, before);
    for (size_t first = 0; first < Record::kElements;) {
      const size_t count = std::min<size_t>(1 + random() % 3000, Record::kElements - first);
      record.update(GetParam(), step, first, count);
      first += count;
    }
    expect_record(record, 0, Record::kElements, before, updated);
  }
}

}  // namespace
}  // namespace terrace
