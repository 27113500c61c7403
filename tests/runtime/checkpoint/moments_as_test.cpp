// A checkpoint of one moment type goes on in another, and in the other form of masters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/runtime/checkpoint/moments_as.h>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::moments_as_test {
namespace {

using namespace checkpoint_tests;

RigOptions options_of(OptimizerKind kind, const RecordLayout& layout, Placement states) {
  RigOptions options;
  options.kind = kind;
  options.layout = layout;
  options.parameters = options.states = states;
  options.chunk_elements = 2 * kTileElements;
  options.unused_columns = 250;
  return options;
}

std::vector<RecordLayout> layouts(uint32_t moments) {
  std::vector<RecordLayout> all;
  for (const MasterForm master : {MasterForm::whole, MasterForm::remainder}) {
    for (const MomentType type : {MomentType::fp32, MomentType::bf16, MomentType::int8})
      all.push_back({master, moments, type});
  }
  return all;
}

// Writes every value of one rig into the other, tensor by tensor.
void copy_values(TrainingRig& from, TrainingRig& to, uint32_t moments) {
  constexpr ValueKind kKinds[] = {ValueKind::master, ValueKind::first_moment, ValueKind::second_moment};
  for (uint32_t t = 0; t < from.space.tensor_count(); ++t) {
    if (!from.space.tensor(TensorId{t}).trainable) continue;
    std::vector<float> values(from.space.place(TensorId{t}).elements);
    for (const ValueKind kind : std::span(kKinds).first(1 + moments)) {
      from.offloader->state().read_values(TensorId{t}, kind, 0, values);
      to.offloader->state().write_values(TensorId{t}, kind, 0, values);
    }
  }
}

class OtherMoments : public ::testing::TestWithParam<OptimizerKind> {};

// Each of six layouts from each of six.
TEST_P(OtherMoments, AreTheNearestValuesOfTheirType) {
  const uint32_t moments = GetParam() == OptimizerKind::lion ? 1 : 2;
  for (const RecordLayout& saved : layouts(moments)) {
    const ScratchFolder folder;
    TrainingRig first(options_of(GetParam(), saved, Placement::nvme));
    first.initialise().train(1, 3).save(folder.path(), 3);
    for (const RecordLayout& mine : layouts(moments)) {
      SCOPED_TRACE(text_of(saved) + " -> " + text_of(mine));
      TrainingRig second(options_of(GetParam(), mine, Placement::cpu));
      second.load(folder.path());
      TrainingRig expected(options_of(GetParam(), mine, Placement::cpu));
      expected.initialise();
      copy_values(first, expected, moments);
      EXPECT_TRUE(second.state() == expected.state());
      EXPECT_TRUE(second.train(4, 5).state() == expected.train(4, 5).state());
      const bool is_said = saved.canonical() != mine.canonical();
      EXPECT_EQ(second.has_logged(text_of_conversion(saved.canonical(), mine)), is_said);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OtherMoments,
                         ::testing::Values(OptimizerKind::adam, OptimizerKind::lion));

TEST(MomentsAs, SaysWhatIsLost) {
  const RecordLayout fp32{MasterForm::whole, 2, MomentType::fp32};
  const RecordLayout compact_int8{MasterForm::remainder, 2, MomentType::int8};
  EXPECT_EQ(
      text_of_conversion(fp32, compact_int8),
      "the optimizer states were saved as whole masters and 2 moments in fp32, and are compact masters "
      "and 2 moments in int8 from here on: moments are rounded to int8 once, and masters stay as they are");
  EXPECT_NE(text_of_conversion(compact_int8, fp32).find("no value changes"), std::string::npos);
}

}  // namespace
}  // namespace terrace::moments_as_test
