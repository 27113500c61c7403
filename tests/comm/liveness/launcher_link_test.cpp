#include <terrace/comm/liveness/launcher_link.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/connections/rank_handshake.h>

namespace terrace::launcher_link_test {
namespace {

using namespace std::chrono_literals;

LauncherWord next_word(LauncherLink& link) {
  while (true) {
    if (const std::optional<LauncherWord> word = link.hear()) return *word;
    if (link.has_ended()) return {.magic = 0};
  }
}

// A launcher to which the ranks of a run come.
class Launcher {
 public:
  explicit Launcher(uint32_t ranks)
      : handshake_(listener_, {run_number("a run"), ranks, RankChannel::launcher, RunSecret(secret_)}) {}

  Environment variables(const std::string& run) const {
    return {{kLauncherPlaces,
             "127.0.0.1:1," + text_of(RendezvousPlace{.host = "127.0.0.1", .port = listener_.port()})},
            {kRunName, run},
            {kSecretVariable, secret_}};
  }
  // The next rank that comes.
  std::pair<uint32_t, LauncherLink> next() {
    while (true) {
      std::vector<RankHandshake::Guest> guests = handshake_.take_in_those_that_came();
      if (!guests.empty()) return {guests[0].hello.rank, LauncherLink(std::move(guests[0].socket))};
    }
  }
  void refuse_until(const std::atomic<bool>& done) {
    while (!done) EXPECT_TRUE(handshake_.take_in_those_that_came().empty());
  }

 private:
  const std::string secret_ = new_secret_text();
  const ListeningSocket listener_{RendezvousPlace{}};
  RankHandshake handshake_;
};

TEST(LauncherLink, RanksComeAndSayWhatTheyDo) {
  Launcher launcher(2);
  std::jthread rank([variables = launcher.variables("a run")] {
    Reason reason;
    LauncherLink link = LauncherLink::of_rank(variables, 1, 2, reason);
    ASSERT_TRUE(link.is_open()) << reason.text;
    EXPECT_EQ(next_word(link).signal, 9u);
    link.tell({.kind = LauncherWord::Kind::lost, .rank = 0});
  });
  auto [number, link] = launcher.next();
  EXPECT_EQ(number, 1u);
  link.tell({.kind = LauncherWord::Kind::death, .rank = 0, .signal = 9});
  EXPECT_EQ(next_word(link).kind, LauncherWord::Kind::lost);
  EXPECT_EQ(next_word(link).kind, LauncherWord::Kind::ended);
  EXPECT_EQ(next_word(link).magic, 0u);
  EXPECT_FALSE(link.has_fallen_silent());
}

TEST(LauncherLink, ADeathIsAnEndWithoutAWord) {
  Launcher launcher(1);
  std::optional<LauncherLink> link;
  {
    Reason reason;
    const Environment variables = launcher.variables("a run");
    const RunKey key{run_number("a run"), 1, RankChannel::launcher, secret_of(variables)};
    std::jthread dies([&] {
      const std::string place = variables.at(kLauncherPlaces).substr(sizeof("127.0.0.1:1,") - 1);
      const std::array places = {rendezvous_place_in(kLauncherPlaces, place)};
      come_to(places, key, 0, reason);
    });
    link.emplace(launcher.next().second);
  }
  EXPECT_EQ(next_word(*link).magic, 0u);
  EXPECT_TRUE(link->has_ended());
}

TEST(LauncherLink, AnotherRunsRankIsRefused) {
  Launcher launcher(1);
  std::atomic<bool> done = false;
  std::jthread refuses([&] { launcher.refuse_until(done); });
  Reason reason;
  EXPECT_FALSE(LauncherLink::of_rank(launcher.variables("another run"), 0, 1, reason).is_open());
  EXPECT_NE(reason.text.find("another run"), std::string::npos) << reason.text;
  done = true;
}

// Everybody on the host sees the name of the run, on mpirun's command line.
TEST(LauncherLink, WhoeverKnowsTheRunAndNotItsSecretIsRefused) {
  Launcher launcher(1);
  std::atomic<bool> done = false;
  std::jthread refuses([&] { launcher.refuse_until(done); });
  Environment variables = launcher.variables("a run");
  for (const std::string& secret : {std::string(), std::string("another secret of a run")}) {
    variables[kSecretVariable] = secret;
    Reason reason;
    EXPECT_FALSE(LauncherLink::of_rank(variables, 0, 1, reason).is_open());
    EXPECT_NE(reason.text.find("does not prove the secret"), std::string::npos) << reason.text;
  }
  done = true;
}

TEST(LauncherLink, IsClosedWhereNoLauncherIsNamed) {
  Reason reason;
  EXPECT_FALSE(LauncherLink::of_rank({}, 0, 1, reason).is_open());
  EXPECT_EQ(reason.text, "");
  const Environment wrong = {{kLauncherPlaces, "nowhere"}, {kRunName, "a run"}};
  EXPECT_THROW(LauncherLink::of_rank(wrong, 0, 1, reason), Error);
}

}  // namespace
}  // namespace terrace::launcher_link_test
