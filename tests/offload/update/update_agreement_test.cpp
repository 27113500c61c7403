#include <terrace/offload/update/update_agreement.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/error.h>

namespace terrace::update_agreement_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Given {
  std::vector<OptimizerSettings> groups{OptimizerSettings{}, OptimizerSettings{.lr = 2e-3}};
  uint64_t step = 5;
  double clip_norm = 1;
  double loss_scale = 1;
  uint64_t written = 0;
  UpdateBallot ballot() const {
    return ballot_of({}, {.groups = groups, .step = step, .clip_norm = clip_norm, .loss_scale = loss_scale},
                     written);
  }
};

void expect_difference(std::string_view words, const std::function<void(Given&)>& change) {
  Given other;
  change(other);
  const std::array all{Given{}.ballot(), Given{}.ballot(), other.ballot()};
  const std::optional<Error> found = difference_of(all);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind(), ErrorKind::config);
  EXPECT_THAT(found->what(), AllOf(HasSubstr("rank 2 has"), HasSubstr(std::string(words))));
}

TEST(UpdateAgreement, SaysWhatOneRankHasOtherThanTheFirst) {
  expect_difference("lr 0.1 instead of 0.001", [](Given& other) { other.groups[0].lr = 0.1; });
  expect_difference("clip_norm 0 instead of 1", [](Given& other) { other.clip_norm = 0; });
  expect_difference("loss_scale 2 instead of 1", [](Given& other) { other.loss_scale = 2; });
  expect_difference("step 6 instead of 5", [](Given& other) { other.step = 6; });
  expect_difference("lr 0.1 instead of 0.001, clip_norm 0 instead of 1", [](Given& other) {
    other.groups[0].lr = 0.1;
    other.clip_norm = 0;
  });
  expect_difference("written others than rank 0", [](Given& other) { other.written = 7; });
}

// Each member of each group counts.
TEST(UpdateAgreement, NamesEveryOtherSettingOfAGroup) {
  const std::array<std::pair<const char*, std::function<void(OptimizerSettings&)>>, kOptimizerSettings>
      changes{{{"kind", [](OptimizerSettings& group) { group.kind = OptimizerKind::lion; }},
               {"lr", [](OptimizerSettings& group) { group.lr = 5; }},
               {"beta1", [](OptimizerSettings& group) { group.beta1 = 0.5; }},
               {"beta2", [](OptimizerSettings& group) { group.beta2 = 0.5; }},
               {"eps", [](OptimizerSettings& group) { group.eps = 1; }},
               {"weight_decay", [](OptimizerSettings& group) { group.weight_decay = 1; }},
               {"adamw_mode", [](OptimizerSettings& group) { group.adamw_mode = false; }},
               {"bias_correction", [](OptimizerSettings& group) { group.bias_correction = false; }},
               {"momentum", [](OptimizerSettings& group) { group.momentum = 0.5; }},
               {"dampening", [](OptimizerSettings& group) { group.dampening = 0.5; }},
               {"nesterov", [](OptimizerSettings& group) { group.nesterov = true; }},
               {"iterations", [](OptimizerSettings& group) { group.muon.iterations = 6; }},
               {"coefficient a", [](OptimizerSettings& group) { group.muon.a = 3; }},
               {"coefficient b", [](OptimizerSettings& group) { group.muon.b = 3; }},
               {"coefficient c", [](OptimizerSettings& group) { group.muon.c = 3; }},
               {"matches_adamw", [](OptimizerSettings& group) { group.muon.matches_adamw = true; }}}};
  for (const auto& one : changes)
    expect_difference(std::string("another ") + one.first + " of a parameter group",
                      [&one](Given& other) { one.second(other.groups[1]); });
  expect_difference("another lr of a parameter group", [](Given& other) { other.groups.pop_back(); });
}

TEST(UpdateAgreement, HoldsWhereAllGiveTheSame) {
  Given one;
  one.written = 9;
  const std::array all{one.ballot(), one.ballot()};
  EXPECT_FALSE(difference_of(all));
}

}  // namespace
}  // namespace terrace::update_agreement_test
