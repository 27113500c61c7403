#include <terrace/offload/commits/whole_state.h>

#include <type_traits>

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace terrace::whole_state_test {
namespace {

using testing::expect_error;

static_assert(!std::is_default_constructible_v<WholeState> && !std::is_copy_constructible_v<WholeState>,
              "only a custody makes a proof, and there is one");

StateCustody loaded() {
  StateCustody custody(false);
  custody.begin_loading(StatePart::trained);
  custody.end_loading(StatePart::trained);
  return custody;
}

TEST(StateCustody, GivesNoProofBeforeAStateIsLoaded) {
  StateCustody custody(false);
  EXPECT_FALSE(custody.is_whole());
  expect_error(ErrorKind::cancelled,
               {"cannot commit \"the state in memory\"", "no state was loaded as a whole"},
               [&] { static_cast<void>(custody.whole("cannot commit")); });
  custody.begin_loading(StatePart::trained);
  EXPECT_FALSE(custody.is_whole());
  custody.end_loading(StatePart::trained);
  EXPECT_TRUE(custody.is_whole());
}

TEST(StateCustody, IsWholeOnlyWithEveryPart) {
  StateCustody custody(true);
  custody.begin_loading(StatePart::trained);
  custody.end_loading(StatePart::trained);
  EXPECT_FALSE(custody.is_whole());
  custody.begin_loading(StatePart::frozen);
  custody.end_loading(StatePart::frozen);
  EXPECT_TRUE(custody.is_whole());
  // One part anew, and the other as it was.
  custody.begin_loading(StatePart::trained);
  EXPECT_FALSE(custody.is_whole());
  custody.end_loading(StatePart::trained);
  EXPECT_TRUE(custody.is_whole());
}

TEST(StateCustody, TakesTheProofForAChangeAndGivesItBackAtItsEnd) {
  StateCustody custody = loaded();
  custody.begin_change("a step");
  EXPECT_TRUE(custody.is_changing());
  EXPECT_FALSE(custody.is_whole());
  custody.end_change();
  EXPECT_FALSE(custody.is_changing());
  EXPECT_TRUE(custody.is_whole());
}

TEST(StateCustody, GivesNothingAfterAChangeThatDidNotEnd) {
  StateCustody custody = loaded();
  custody.begin_change("a step");
  expect_error(ErrorKind::cancelled, {"cannot commit", "a step did not end", "resume from the last commit"},
               [&] { static_cast<void>(custody.whole("cannot commit")); });
  expect_error(ErrorKind::cancelled, {"a step did not end"}, [&] { custody.begin_change("a step"); });
  // A state that is loaded anew is whole again.
  custody.begin_loading(StatePart::trained);
  custody.end_loading(StatePart::trained);
  EXPECT_TRUE(custody.is_whole());
}

TEST(StateCustodyDeathTest, EndsNoChangeThatWasNotBegun) {
  StateCustody custody = loaded();
  EXPECT_DEATH(custody.end_change(), "a change ends that was begun");
}

}  // namespace
}  // namespace terrace::whole_state_test
