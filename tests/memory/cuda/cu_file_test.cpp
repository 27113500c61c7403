#include <terrace/memory/cuda/cu_file.h>

namespace terrace::cu_file_test {
namespace {

TEST(CuFile, IsSaidToBeMissingOrTooOldAndWhy) {
  const CuFileFacts none = probe_cu_file("libterrace-no-such-library.so.0");
  EXPECT_EQ(none.version, "");
  EXPECT_NE(none.reason.find("No such file"), std::string::npos) << none.reason;
  const CuFileFacts old = probe_cu_file("libm.so.6");
  EXPECT_EQ(old.version, "");
  EXPECT_EQ(old.reason, "libm.so.6 is older than 1.7: it lacks cuFileGetVersion");
}

TEST(CuFile, SaysItsVersionWhereItIsInstalled) {
  const CuFileFacts facts = probe_cu_file();
  if (facts.version.empty()) GTEST_SKIP() << facts.reason;
  EXPECT_EQ(facts.reason, "");
  EXPECT_EQ(facts.version.substr(0, 2), "1.");
}

}  // namespace
}  // namespace terrace::cu_file_test
