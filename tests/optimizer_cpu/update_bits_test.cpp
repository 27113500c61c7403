// What must not change a single bit of an update: the instruction set, the layout, how the elements are cut.
#include <gtest/gtest.h>

#include "instruction_set_cases.h"
#include "update_problem.h"

namespace terrace::update_bits_test {
namespace {

class UpdateBits : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(UpdateBits);

void expect_same_bits(const UpdateProblem& a, const UpdateProblem& b) {
  for (size_t i = 0; i < a.count; ++i) {
    ASSERT_TRUE(identical(a.master(i, true), b.master(i, true)))
        << "master " << i << ": " << a.master(i, true) << ", " << b.master(i, true);
    ASSERT_TRUE(identical(a.parameter(i), b.parameter(i))) << "parameter " << i;
    for (size_t k = 0; k < a.moments.size(); ++k) {
      ASSERT_TRUE(same(a.moment(k, i), b.moment(k, i))) << "moment " << k << " of " << i;
    }
  }
}

TEST_P(UpdateBits, AreThoseOfTheScalarReferenceForEverySizeAndSetting) {
  std::mt19937 random(11);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      for (size_t count = 1; count <= 70; ++count) {
        UpdateProblem reference(settings, layout, count, count % 7);
        reference.fill_state(random);
        UpdateProblem problem = reference;
        SCOPED_TRACE(problem.name());
        for (uint64_t step = 1; step <= 2; ++step) {
          reference.fill_gradients(random);
          problem.gradients = reference.gradients;
          const OptimizerStep constants = make_optimizer_step(settings, step, 0.731f);
          reference.update(InstructionSet::scalar, constants);
          problem.update(GetParam(), constants);
          expect_same_bits(reference, problem);
          reference.keep_parameters();
          problem.keep_parameters();
        }
        ASSERT_TRUE(problem.guards_are_whole());
      }
    });
  }
}

TEST_P(UpdateBits, AreThoseOfTheScalarReferenceForAnyInputBits) {
  std::mt19937 random(12);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      UpdateProblem reference(settings, layout, 5003, 1);
      reference.fill_with_any_bits(random);
      UpdateProblem problem = reference;
      SCOPED_TRACE(problem.name());
      const OptimizerStep step = make_optimizer_step(settings, 7, 1.0f / 3);
      reference.update(InstructionSet::scalar, step);
      problem.update(GetParam(), step);
      expect_same_bits(reference, problem);
    });
  }
}

TEST_P(UpdateBits, DoNotDependOnHowTheElementsAreCutIntoRuns) {
  std::mt19937 random(13);
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      UpdateProblem whole(settings, layout, 1500, 1);
      whole.fill_state(random);
      whole.fill_gradients(random);
      UpdateProblem cut = whole;
      SCOPED_TRACE(whole.name());
      const OptimizerStep step = make_optimizer_step(settings, 2, 0.5f);
      whole.update(GetParam(), step);
      for (size_t first = 0; first < cut.count;) {
        const size_t run = std::min<size_t>(1 + random() % 300, cut.count - first);
        cut.update(GetParam(), step, first, run);
        first += run;
      }
      expect_same_bits(whole, cut);
    });
  }
}

// A record of four tiles with what belongs beside it.
struct Record {
  static constexpr size_t kTiles = 4;
  static constexpr size_t kElements = kTiles * kTileElements;
  RecordLayout layout;
  Layout types;
  std::vector<float> memory;  // for its alignment
  std::vector<std::byte> gradients, parameters, old_parameters;

  explicit Record(const UpdateProblem& from)
      : layout(from.record),
        types(from.layout),
        memory(kTiles * layout.tile_bytes() / sizeof(float)),
        gradients(bytes_behind(from.gradients)),
        parameters(bytes_behind(from.parameters)),
        old_parameters(bytes_behind(from.old_parameters)) {
    for (size_t i = 0; i < kElements; ++i) {
      copy_element(from.masters, i, master(i));
      for (size_t k = 0; k < from.moments.size(); ++k) copy_element(from.moments[k], i, moment(k, i));
    }
  }
  static std::vector<std::byte> bytes_behind(const GuardedArray& array) {
    return {array.bytes.begin() + static_cast<ptrdiff_t>(array.shift), array.bytes.end()};
  }
  static void copy_element(const GuardedArray& from, size_t i, std::byte* to) {
    std::memcpy(to, from.data() + i * from.element_bytes, from.element_bytes);
  }

  std::byte* tile(size_t i) {
    return reinterpret_cast<std::byte*>(memory.data()) + i / kTileElements * layout.tile_bytes();
  }
  std::byte* master(size_t i) {
    return tile(i) + i % kTileElements * (layout.master_bytes() / kTileElements);
  }
  std::byte* moment(size_t k, size_t i) {
    return tile(i) + layout.moment_offset(static_cast<uint32_t>(k)) +
           i % kTileElements * bytes_of(layout.moment_type);
  }
  void update(InstructionSet set, const OptimizerStep& step, size_t first, size_t count) {
    update_tiles(set, step,
                 {.layout = layout,
                  .record = reinterpret_cast<std::byte*>(memory.data()),
                  .gradients = gradients.data(),
                  .gradient_type = types.gradient,
                  .parameters = (types.output == Output::over_gradients ? gradients : parameters).data(),
                  .parameter_type = types.parameter,
                  .old_parameters = (types.output == Output::apart ? parameters : old_parameters).data(),
                  .first_element = first,
                  .element_count = count});
  }
};

void expect_element(const GuardedArray& expected, size_t i, const std::byte* actual, const char* what) {
  ASSERT_EQ(std::memcmp(expected.data() + i * expected.element_bytes, actual, expected.element_bytes), 0)
      << what << " " << i;
}

// Elements [first, end) are those of `updated` and all others those of `before`.
void expect_record(Record& record, size_t first, size_t end, const UpdateProblem& before,
                   const UpdateProblem& updated) {
  for (size_t i = 0; i < Record::kElements; ++i) {
    const UpdateProblem& expected = i >= first && i < end ? updated : before;
    expect_element(expected.masters, i, record.master(i), "master");
    expect_element(expected.gradients, i, record.gradients.data() + i * bytes_of(record.types.gradient),
                   "gradient");
    expect_element(expected.parameters, i, record.parameters.data() + i * bytes_of(record.types.parameter),
                   "parameter");
    expect_element(expected.old_parameters, i,
                   record.old_parameters.data() + i * bytes_of(record.types.parameter), "old parameter");
    for (size_t k = 0; k < expected.moments.size(); ++k) {
      expect_element(expected.moments[k], i, record.moment(k, i), "moment");
    }
  }
}

constexpr Layout kTileLayouts[] = {
    {DataType::bf16, DataType::bf16, MomentType::fp32, MasterForm::whole, Output::over_gradients},
    {DataType::fp16, DataType::fp16, MomentType::fp32, MasterForm::whole, Output::over_gradients},
    {DataType::fp32, DataType::bf16, MomentType::bf16, MasterForm::whole, Output::apart},
    {DataType::bf16, DataType::bf16, MomentType::fp32, MasterForm::remainder, Output::apart},
    {DataType::bf16, DataType::bf16, MomentType::bf16, MasterForm::remainder, Output::over_gradients},
    {DataType::fp32, DataType::bf16, MomentType::fp32, MasterForm::remainder, Output::beside_old},
    {DataType::fp32, DataType::fp32, MomentType::fp32, MasterForm::parameter, Output::apart},
    {DataType::bf16, DataType::fp32, MomentType::bf16, MasterForm::parameter, Output::beside_old},
};

TEST_P(UpdateBits, AreTheSameInTilesAndReachNoElementOutsideTheRun) {
  constexpr size_t tile = kTileElements;
  constexpr std::pair<size_t, size_t> kRuns[] = {{0, Record::kElements},
                                                 {0, 0},
                                                 {0, 1},
                                                 {tile - 1, tile + 1},
                                                 {tile, 2 * tile},
                                                 {5, 3 * tile + 77},
                                                 {2 * tile + 64, 2 * tile + 192},
                                                 {3 * tile + 1, 4 * tile},
                                                 {4 * tile, 4 * tile}};
  std::mt19937 random(14);
  const std::vector<OptimizerSettings> all_settings = every_settings();
  size_t next = 0;
  for (const Layout& layout : kTileLayouts) {
    for (const auto& [first, end] : kRuns) {
      UpdateProblem before(all_settings[next++ % all_settings.size()], layout, Record::kElements, 0);
      before.fill_state(random);
      before.fill_gradients(random);
      const OptimizerStep step = make_optimizer_step(before.settings, 2, 0.5f);
      UpdateProblem updated = before;
      updated.update(InstructionSet::scalar, step);
      SCOPED_TRACE(before.name() + ": " + std::to_string(first) + " to " + std::to_string(end));
      Record record(before);
      record.update(GetParam(), step, first, end - first);
      expect_record(record, first, end, before, updated);
    }
  }
}

TEST_P(UpdateBits, DoNotDependOnHowARecordIsCutIntoSegments) {
  std::mt19937 random(15);
  for (const Layout& layout : kTileLayouts) {
    for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::lion}) {
      UpdateProblem before({.kind = kind, .weight_decay = 0.1}, layout, Record::kElements, 0);
      before.fill_state(random);
      before.fill_gradients(random);
      const OptimizerStep step = make_optimizer_step(before.settings, 2, 0.5f);
      UpdateProblem updated = before;
      updated.update(InstructionSet::scalar, step);
      Record record(before);
      SCOPED_TRACE(before.name());
      for (size_t first = 0; first < Record::kElements;) {
        const size_t count = std::min<size_t>(1 + random() % 3000, Record::kElements - first);
        record.update(GetParam(), step, first, count);
        first += count;
      }
      expect_record(record, 0, Record::kElements, before, updated);
    }
  }
}

}  // namespace
}  // namespace terrace::update_bits_test
