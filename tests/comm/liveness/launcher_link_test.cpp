#include <terrace/comm/liveness/launcher_link.h>

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace terrace::launcher_link_test {
namespace {

LauncherWord next_word(LauncherLink& link) {
  while (true) {
    if (const std::optional<LauncherWord> word = link.hear()) return *word;
    if (link.has_ended()) return {.magic = 0};
  }
}

TEST(LauncherLink, BothSidesHearEachOtherUntilOneEnds) {
  auto [launcher, fd] = LauncherLink::make();
  {
    LauncherLink rank(Environment{{kLauncherFd, std::to_string(fd)}});
    ASSERT_TRUE(rank.is_open());
    launcher.tell({.kind = LauncherWord::Kind::death, .rank = 3, .signal = 9});
    const LauncherWord death = next_word(rank);
    EXPECT_EQ(death.rank, 3u);
    EXPECT_EQ(death.signal, 9u);
    EXPECT_FALSE(rank.hear());
    EXPECT_FALSE(rank.has_ended());
    rank.tell({.kind = LauncherWord::Kind::kept, .rank = 1});
  }
  EXPECT_EQ(next_word(launcher).kind, LauncherWord::Kind::kept);
  EXPECT_EQ(next_word(launcher).magic, 0u);
  EXPECT_TRUE(launcher.has_ended());
  EXPECT_EQ(launcher.fd_to_hear(), -1);
  launcher.tell({.kind = LauncherWord::Kind::death, .rank = 0, .signal = 9});
}

TEST(LauncherLink, IsClosedWhereNoLauncherHasStartedTheProcess) {
  EXPECT_FALSE(LauncherLink(Environment{}).is_open());
  EXPECT_FALSE(
      LauncherLink(Environment{{kLauncherFd, "0"}}).is_open());  // a number that another file has now
}

}  // namespace
}  // namespace terrace::launcher_link_test
