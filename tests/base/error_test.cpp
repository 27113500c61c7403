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

TEST(Error, AdvisesOnALimitOfTheSystemWhateverRanIntoIt) {
  const auto advice_of = [](const Reason& reason) {
    return Error(ErrorKind::io, {"cannot read", "x", reason, "check the path"}).parts().advice.in(Door::cpp);
  };
  EXPECT_NE(advice_of(system_reason(EMFILE)).find("ulimit -n"), std::string::npos);
  EXPECT_NE(advice_of(system_reason(ENFILE)).find("fs.file-max"), std::string::npos);
  EXPECT_NE(advice_of(system_reason(EFBIG)).find("ulimit -f"), std::string::npos);
  EXPECT_NE(advice_of("after 3 bytes: " + system_reason(EMFILE) + ", of 4").find("ulimit -n"),
            std::string::npos);
  EXPECT_EQ(advice_of(system_reason(EIO)), "check the path");
  EXPECT_EQ(advice_of("Too many open files (EMFILE)"), "check the path") << "a number says it, not the words";
}

TEST(Error, KeepsTheNumberOfTheSystem) {
  const Error error(ErrorKind::io, {"cannot read", "x", "block 3: " + system_reason(EIO), ""});
  EXPECT_EQ(error.parts().error_number, EIO);
  EXPECT_EQ(error.parts().reason, "block 3: Input/output error (EIO)");
  EXPECT_EQ(Error(ErrorKind::io, {"cannot read", "x", "it is short", ""}).parts().error_number, 0);
}

TEST(Error, TellsARefusalOfTheSystemFromAFileThatIsNotThere) {
  const auto is_refusal = [](const Reason& reason) {
    return is_system_refusal(Error(ErrorKind::io, {"cannot read", "x", reason, ""}));
  };
  for (const int number : {EACCES, EMFILE, ENFILE, EIO, ENOMEM})
    EXPECT_TRUE(is_refusal(system_reason(number)));
  for (const int number : {ENOENT, ENOTDIR}) EXPECT_FALSE(is_refusal(system_reason(number)));
  EXPECT_FALSE(is_refusal("its checksum is wrong"));
}

TEST(Error, TellsDamageFromARefusalThatSaysNothingOfTheState) {
  const auto is_damaged = [](const Reason& reason, ErrorKind kind = ErrorKind::io) {
    return is_damage(Error(kind, {"cannot read", "x", reason, ""}));
  };
  EXPECT_TRUE(is_damaged("its checksum is wrong", ErrorKind::corrupt));
  EXPECT_TRUE(is_damaged("it became shorter meanwhile"));
  EXPECT_TRUE(is_damaged(system_reason(ENOENT)));
  for (const int number : {EACCES, EMFILE, ENFILE, ENOMEM, EIO})
    EXPECT_FALSE(is_damaged(system_reason(number)));
  EXPECT_FALSE(is_damaged("it has format version 9", ErrorKind::config));
}

TEST(Error, TellsADriveThatFailsFromOtherRefusals) {
  for (const int number : {EIO, ENODATA, EBADMSG, EUCLEAN}) EXPECT_TRUE(is_drive_failure(number)) << number;
  for (const int number : {0, ENOENT, EACCES, EMFILE, ENOSPC})
    EXPECT_FALSE(is_drive_failure(number)) << number;
}

TEST(Error, PutsNoQuotesAroundQuotes) {
  EXPECT_STREQ(Error(ErrorKind::config, {"cannot use", "--layers \"x\"", "it is no number", ""}).what(),
               "cannot use --layers \"x\": it is no number");
}

TEST(SystemReason, GivesTheWordsAndTheName) {
  EXPECT_EQ(system_reason(ENOSPC).text, "No space left on device (ENOSPC)");
  EXPECT_EQ(system_reason(EIO).text, "Input/output error (EIO)");
}

TEST(SystemReason, GivesTheNumberOfAnErrorWithoutAName) {
  EXPECT_EQ(system_reason(99999).text, "error 99999");
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
