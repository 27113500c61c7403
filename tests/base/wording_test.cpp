#include <terrace/base/wording.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace::wording_test {
namespace {

TEST(Wording, NamesAnOptionAsItsDoorDoes) {
  const Wording wording = "raise " + Option::host_budget + ", or wait";
  EXPECT_EQ(wording.in(Door::cpp), "raise OffloadOptions::host_budget_bytes, or wait");
  EXPECT_EQ(wording.in(Door::c), "raise terrace_options.host_bytes, or wait");
  EXPECT_EQ(wording.in(Door::python), "raise host_bytes, or wait");
  EXPECT_EQ(wording.in(Door::program), "raise --host-memory (terrace.host_memory), or wait");
  EXPECT_EQ(wording.in(Door::configuration), "raise terrace.host_memory, or wait");
}

TEST(Wording, NestsNoParentheses) {
  EXPECT_EQ(("let it run (" + Option::update_when + ")").in(Door::program),
            "let it run (terrace.update, --update)");
  EXPECT_EQ(("let it run (" + Option::update_when + " more)").in(Door::program),
            "let it run (--update (terrace.update) more)");
}

TEST(Wording, GoesByTheNearestNameWhereADoorHasNone) {
  EXPECT_EQ(Wording(Option::processor_share).in(Door::c), "OffloadOptions::processor_share");
  EXPECT_EQ(Wording(Option::optimizer).in(Door::cpp), "terrace_options.optimizer");
  EXPECT_EQ(Wording(Option::gradients).in(Door::program), "OffloadOptions::gradients");
  EXPECT_EQ(Wording(Option::discard_commits).in(Door::configuration), "discard_commits");
  EXPECT_EQ(Wording(Option::durable).in(Door::program), "terrace.durable");
}

TEST(Wording, KnowsWhichOptionsItMeans) {
  Wording wording = Option::states + " or ";
  EXPECT_TRUE(wording.names(Option::states));
  EXPECT_FALSE(wording.names(Option::parameters));
  EXPECT_FALSE(Wording("OffloadOptions::states").names(Option::states)) << "a word is no option";
  wording += Option::parameters;
  EXPECT_TRUE(wording.names(Option::parameters));
}

TEST(Wording, SaysWhatIsNoOptionByTheNamesThatItIsGiven) {
  const Wording call = "call " + Wording(Names{.c = "terrace_update", .python = "Store.update"});
  EXPECT_EQ(call.in(Door::c), "call terrace_update");
  EXPECT_EQ(call.in(Door::configuration), "call Store.update");
}

TEST(Wording, OfTextAloneIsTheSameAtEveryDoor) {
  for (const Door door : {Door::cpp, Door::c, Door::python, Door::program, Door::configuration})
    EXPECT_EQ(Wording("my OffloadOptions::durable").in(door), "my OffloadOptions::durable");
  EXPECT_TRUE(Wording("").empty());
}

TEST(Wording, OfAnErrorIsEscapedAtEveryDoor) {
  const Error error(ErrorKind::config, {"cannot use", "a\x1b", "no", "set " + Option::durable});
  EXPECT_EQ(error.in(Door::program), "cannot use \"a\\u001b\": no\n  set terrace.durable");
  EXPECT_EQ(error.without_advice(), "cannot use \"a\\u001b\": no");
  EXPECT_EQ(error.in(Door::cpp), error.what());
}

}  // namespace
}  // namespace terrace::wording_test
