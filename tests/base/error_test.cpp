#include <terrace/base/error.h>

#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/base/assert.h>

namespace terrace::error_test {
namespace {

TEST(Error, SaysWhatFailedOnWhatWhyAndWhatToDo) {
  const Error error(ErrorKind::io, {"cannot open the tier file", "/nvme/terrace.0",
                                    "Permission denied (EACCES)", "choose a folder you may write to"});
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_STREQ(error.what(),
               "cannot open the tier file \"/nvme/terrace.0\": Permission denied (EACCES)\n"
               "  choose a folder you may write to");
  EXPECT_EQ(error.parts().reason, "Permission denied (EACCES)");
}

TEST(Error, LeavesOutThePartsThatAreEmpty) {
  EXPECT_STREQ(Error(ErrorKind::cancelled, {"stopped by the user", "", "", ""}).what(),
               "stopped by the user");
  EXPECT_STREQ(Error(ErrorKind::config, {"unknown key", "lrr", "", "did you mean \"lr\"?"}).what(),
               "unknown key \"lrr\"\n  did you mean \"lr\"?");
}

TEST(Error, LetsNoPartWriteLinesOrEscapesOfItsOwn) {
  const Error error(ErrorKind::config,
                    {"cannot read", "x\n  \x1b[2J", "dtype \x1b]0;t\x07\nterrace: saved", ""});
  EXPECT_STREQ(error.what(),
               R"(cannot read "x\u000a  \u001b[2J": dtype \u001b]0;t\u0007\u000aterrace: saved)");
  EXPECT_EQ(error.parts().subject, "x\n  \x1b[2J") << "a page and a log escape in their own way";
}

TEST(Error, IsCaughtAsARuntimeError) {
  EXPECT_THROW(throw Error(ErrorKind::capacity, {"too small", "", "", ""}), std::runtime_error);
}

TEST(SystemReason, GivesTheWordsAndTheName) {
  EXPECT_EQ(system_reason(ENOSPC), "No space left on device (ENOSPC)");
  EXPECT_EQ(system_reason(EIO), "Input/output error (EIO)");
}

TEST(SystemReason, GivesTheNumberOfAnErrorWithoutAName) {
  EXPECT_EQ(system_reason(99999), "error 99999");
}

TEST(AssertDeathTest, PrintsConditionPlaceAndMessageBeforeItAborts) {
  const int slots = 3;
  EXPECT_DEATH(TERRACE_ASSERT(slots > 4, "there are " + std::to_string(slots) + " slots"),
               "assertion failed: slots > 4\n  at .*error_test.cpp:[0-9]+\n  there are 3 slots");
}

TEST(Assert, EvaluatesTheMessageOnlyWhenTheConditionIsFalse) {
  int evaluations = 0;
  const auto message = [&] { return std::to_string(++evaluations); };
  TERRACE_ASSERT(true, message());
  EXPECT_EQ(evaluations, 0);
}

}  // namespace
}  // namespace terrace::error_test
