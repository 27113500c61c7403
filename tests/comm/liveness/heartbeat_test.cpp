#include <terrace/comm/liveness/heartbeat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/liveness/heartbeat_rendezvous.h>

#include "comm/thread_world.h"
#include "support/patience.h"
#include "support/rank_threads.h"

namespace terrace::heartbeat_test {
namespace {

using namespace std::chrono_literals;
using testing::kPatience;
using testing::on_every_rank;

std::array<StreamSocket, 2> connected() {
  std::array<int, 2> fds{-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  return {StreamSocket(fds[0]), StreamSocket(fds[1])};
}

// The heartbeats of three ranks in one process, but for those that a test plays itself.
class Ranks {
 public:
  static constexpr uint32_t kRanks = 3;

  Ranks() {
    for (uint32_t r = 0; r < kRanks; ++r) links_.emplace_back(kRanks);
    for (uint32_t r = 1; r < kRanks; ++r) {
      auto [of_first, of_rank] = connected();
      links_[0][r] = std::move(of_first);
      links_[r][0] = std::move(of_rank);
    }
  }

  Heartbeat& begin(uint32_t rank, HeartbeatHooks hooks = {},
                   LauncherLink launcher = LauncherLink(Environment())) {
    launchers_[rank].emplace(std::move(launcher));
    heartbeats_[rank] =
        std::make_unique<Heartbeat>(rank, std::move(links_[rank]), *launchers_[rank], std::move(hooks));
    return *heartbeats_[rank];
  }
  void end(uint32_t rank) { heartbeats_[rank].reset(); }
  // The connection of a rank that has no heartbeat; closed: the rank has died.
  StreamSocket& link_of(uint32_t rank) { return links_[rank][0]; }
  StreamSocket& link_of_first_to(uint32_t rank) { return links_[0][rank]; }

 private:
  std::vector<std::vector<StreamSocket>> links_;
  std::array<std::optional<LauncherLink>, kRanks> launchers_;
  std::array<std::unique_ptr<Heartbeat>, kRanks> heartbeats_;
};

void send_message(const StreamSocket& socket, const HeartbeatMessage& message) {
  Reason reason;
  ASSERT_TRUE(write_whole(socket, std::as_bytes(std::span(&message, 1)), Deadline(kPatience), reason))
      << reason.text;
}

RankStanding standing_of(uint32_t rank) {
  return {.step = 800 + rank,
          .operations = {rank, 2, 3, 4},
          .waits_for_ranks = rank == 1,
          .operation = "mb0/h.1.mlp/forward of " + std::to_string(rank)};
}

LauncherLink launcher_of_rank(std::optional<LauncherLink>& launcher) {
  auto [own, fd] = LauncherLink::make();
  launcher.emplace(std::move(own));
  return LauncherLink(Environment{{kLauncherFd, std::to_string(fd)}});
}

LauncherWord next_word(LauncherLink& launcher) {
  while (true) {
    if (const std::optional<LauncherWord> word = launcher.hear()) return *word;
  }
}

TEST(Heartbeat, TellsAllOfADeath) {
  Ranks ranks;
  std::promise<RankLoss> lost;
  Heartbeat& first = ranks.begin(0, {.lost = [&](const RankLoss& loss) { lost.set_value(loss); }});
  Heartbeat& second = ranks.begin(1);
  send_message(ranks.link_of(2), message_of(2, standing_of(2), 0));
  ranks.link_of(2).close();
  for (Heartbeat* heartbeat : {&first, &second}) {
    const std::optional<RankLoss> loss = heartbeat->loss(kPatience);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 2u);
    EXPECT_TRUE(loss->died);
    EXPECT_EQ(loss->signal, 0u);
    EXPECT_EQ(loss->why, "its connection has ended");
    EXPECT_EQ(loss->last.step, 802u);
    EXPECT_EQ(loss->last.operation, "mb0/h.1.mlp/forward of 2");
    EXPECT_EQ(loss->last.operations[0], 2u);
  }
  EXPECT_EQ(lost.get_future().get().rank, 2u);
}

TEST(Heartbeat, EveryRankSeesTheDeathOfTheFirst) {
  Ranks ranks;
  Heartbeat& second = ranks.begin(1);
  Heartbeat& third = ranks.begin(2);
  for (uint32_t r = 1; r < 3; ++r) {
    send_message(ranks.link_of_first_to(r), message_of(0, standing_of(0), 0));
    ranks.link_of_first_to(r).close();
  }
  for (Heartbeat* heartbeat : {&second, &third}) {
    const std::optional<RankLoss> loss = heartbeat->loss(kPatience);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 0u);
    EXPECT_TRUE(loss->died);
    EXPECT_EQ(loss->last.step, 800u);
  }
}

TEST(Heartbeat, AFarewellIsNoDeath) {
  Ranks ranks;
  Heartbeat& first = ranks.begin(0);
  ranks.begin(1);
  ranks.begin(2);
  ranks.end(1);
  EXPECT_FALSE(first.loss(0ms));
  ranks.end(2);
  // Whoever is answered after both have left has seen them leave.
  EXPECT_FALSE(first.loss(20ms));
  ranks.end(0);
}

TEST(Heartbeat, LastWordsAreToldAndAreNoDeath) {
  Ranks ranks;
  std::atomic<int> late{0};
  Heartbeat& first = ranks.begin(0, {.late = [&](const RankLoss&) { ++late; }, .patience = 0ms});
  Heartbeat& second = ranks.begin(1);
  Heartbeat& third = ranks.begin(2);
  third.leave("cannot write \"x\": no room");
  for (Heartbeat* heartbeat : {&first, &second}) {
    const std::optional<RankLoss> loss = heartbeat->loss(kPatience);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 2u);
    EXPECT_FALSE(loss->died);
    EXPECT_EQ(loss->why, "cannot write \"x\": no room");
  }
  ranks.end(0);
  EXPECT_EQ(late, 0);
}

TEST(Heartbeat, RanksThatEndTogetherSpeakInTurn) {
  Ranks ranks;
  Heartbeat& first = ranks.begin(0);
  Heartbeat& second = ranks.begin(1);
  Heartbeat& third = ranks.begin(2);
  second.leave("the same", {7, 2});
  third.leave("the same", {7, 1});
  const std::vector<std::optional<LastWords>> words = first.last_words(kPatience);
  EXPECT_EQ(words, (std::vector<std::optional<LastWords>>{{}, LastWords{7, 2}, LastWords{7, 1}}));
  first.leave("another", {8, 2});
  first.let_end(1, {"ranks 1 and 2", 2});
  first.let_end(2, {"", 2});
  EXPECT_EQ(second.own_end(kPatience), (EndOfRank{"ranks 1 and 2", 2}));
  EXPECT_EQ(third.own_end(kPatience), (EndOfRank{"", 2}));
  std::jthread end([&] {
    first.wait_for_speakers(kPatience);
    ranks.end(0);
  });
  second.has_spoken(kPatience);
  third.has_spoken(kPatience);
}

TEST(Heartbeat, WithoutTheFirstRankEachSpeaksForItself) {
  Ranks ranks;
  Heartbeat& second = ranks.begin(1);
  second.leave("a reason", {7, 2});
  ranks.link_of_first_to(1).close();
  EXPECT_EQ(second.own_end(kPatience), std::nullopt);
}

TEST(Heartbeat, WhoeverIsLateIsEnded) {
  Ranks ranks;
  std::promise<uint32_t> late;
  ranks.begin(0);
  ranks.begin(1, {.late = [&](const RankLoss& loss) { late.set_value(loss.rank); }, .patience = 1ms});
  ranks.link_of(2).close();
  EXPECT_EQ(late.get_future().get(), 2u);
}

TEST(Heartbeat, WhoeverIsLateAfterAFailureIsToldOfIt) {
  Ranks ranks;
  std::promise<RankLoss> late;
  ranks.begin(0);
  ranks.begin(1,
              {.late_after_failure = [&](const RankLoss& loss) { late.set_value(loss); }, .patience = 1ms});
  ranks.begin(2).leave("no room");
  const RankLoss loss = late.get_future().get();
  EXPECT_EQ(loss.rank, 2u);
  EXPECT_FALSE(loss.died);
  EXPECT_EQ(loss.why, "no room");
}

TEST(Heartbeat, TheFirstDeathCounts) {
  Ranks ranks;
  Heartbeat& first = ranks.begin(0);
  ranks.link_of(2).close();
  ASSERT_TRUE(first.loss(kPatience));
  ranks.link_of(1).close();
  ranks.end(0);
  Ranks others;
  Heartbeat& again = others.begin(0);
  others.link_of(1).close();
  EXPECT_EQ(again.loss(kPatience)->rank, 1u);
}

TEST(Heartbeat, TheLauncherKnowsTheSignal) {
  Ranks ranks;
  std::optional<LauncherLink> launcher;
  Heartbeat& first = ranks.begin(0, {}, launcher_of_rank(launcher));
  Heartbeat& second = ranks.begin(1);
  EXPECT_EQ(next_word(*launcher).kind, LauncherWord::Kind::watching);
  send_message(ranks.link_of(2), message_of(2, standing_of(2), 0));
  ranks.link_of(2).close();
  launcher->tell({.kind = LauncherWord::Kind::death, .rank = 2, .signal = 9});
  for (Heartbeat* heartbeat : {&first, &second}) {
    const std::optional<RankLoss> loss = heartbeat->loss(kPatience);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 2u);
    EXPECT_EQ(loss->signal, 9u);
    EXPECT_EQ(loss->last.step, 802u);
  }
  first.has_been_said();
  EXPECT_EQ(next_word(*launcher).kind, LauncherWord::Kind::said);
  first.has_kept();
  EXPECT_EQ(next_word(*launcher).kind, LauncherWord::Kind::kept);
}

// The rank that gives up ends at once: the launcher and the others know of it by then.
TEST(Heartbeat, TellsTheLauncherWhoIsSilentWhereItGivesUp) {
  Ranks ranks;
  std::optional<LauncherLink> launcher;
  Heartbeat& first = ranks.begin(0, {}, launcher_of_rank(launcher));
  EXPECT_EQ(next_word(*launcher).kind, LauncherWord::Kind::watching);
  const std::array silent = {2u};
  first.give_up(silent, "one wait was too long", kPatience);
  const LauncherWord stalled = next_word(*launcher);
  EXPECT_EQ(stalled.kind, LauncherWord::Kind::stalled);
  EXPECT_EQ(stalled.rank, 2u);
  HeartbeatMessage message;
  Reason reason;
  do {
    ASSERT_TRUE(read_whole(ranks.link_of(1), std::as_writable_bytes(std::span(&message, 1)),
                           Deadline(kPatience), reason))
        << reason.text;
  } while (message.word == HeartbeatWord::standing);
  EXPECT_EQ(message.word, HeartbeatWord::farewell);
}

// A wait may be given up before anybody has been silent for long; who hangs is then named all the same.
TEST(Heartbeat, WaitsUntilSilenceCanBeTold) {
  Ranks ranks;
  Heartbeat& first = ranks.begin(0);
  Heartbeat& second = ranks.begin(1);
  std::vector<uint32_t> silent;
  std::jthread other([&] { silent = second.who_is_silent(4s, kPatience); });
  EXPECT_THAT(first.who_is_silent(4s, kPatience), ::testing::Contains(2u));
  other.join();
  EXPECT_THAT(silent, ::testing::Contains(2u));
}

TEST(Heartbeat, AFirstRankThatDoesNotAnswerIsSilentAtOnce) {
  Ranks ranks;
  EXPECT_EQ(ranks.begin(1).who_is_silent(1h, 20ms), std::vector<uint32_t>{0});
}

TEST(Heartbeat, ALauncherThatEndsIsNoDeath) {
  Ranks ranks;
  std::optional<LauncherLink> launcher;
  Heartbeat& first = ranks.begin(0, {}, launcher_of_rank(launcher));
  launcher.reset();
  EXPECT_FALSE(first.loss(20ms));
}

TEST(Heartbeat, SaysWhereEveryRankIs) {
  Ranks ranks;
  std::vector<Heartbeat*> heartbeats;
  for (uint32_t r = 0; r < Ranks::kRanks; ++r) {
    heartbeats.push_back(&ranks.begin(r));
    heartbeats[r]->set_where([r] { return standing_of(r); });
  }
  for (Heartbeat* heartbeat : heartbeats) {
    std::vector<KnownStanding> all;
    do {
      all = heartbeat->standings(kPatience);
      ASSERT_EQ(all.size(), 3u);
    } while (all[0].standing.step == 0 || all[1].standing.step == 0 || all[2].standing.step == 0);
    for (uint32_t r = 0; r < 3; ++r) {
      EXPECT_EQ(all[r].standing.operation, standing_of(r).operation);
      EXPECT_EQ(all[r].standing.operations, standing_of(r).operations);
      EXPECT_EQ(all[r].standing.waits_for_ranks, r == 1);
      EXPECT_LT(all[r].age, kPatience);
    }
  }
  for (Heartbeat* heartbeat : heartbeats) heartbeat->set_where(nullptr);
}

TEST(Heartbeat, HasNoAnswerWhereTheFirstRankGivesNone) {
  Ranks ranks;
  EXPECT_TRUE(ranks.begin(1).standings(20ms).empty());
}

TEST(Heartbeat, WhoeverSendsWhatIsNoMessageIsGone) {
  for (int kind = 0; kind < 3; ++kind) {
    Ranks ranks;
    Heartbeat& first = ranks.begin(0);
    HeartbeatMessage message = message_of(HeartbeatWord::standing, 2);
    if (kind == 0) message.magic = 1;
    if (kind == 1) message.word = HeartbeatWord{77};
    if (kind == 2) message.rank = 3;
    send_message(ranks.link_of(2), message);
    EXPECT_EQ(first.loss(kPatience)->rank, 2u);
  }
}

// Only the first rank speaks of others; what it says of itself is its own.
TEST(Heartbeat, WhoeverSpeaksForAnotherRankIsGone) {
  std::vector<HeartbeatMessage> lies = {
      message_of(HeartbeatWord::standing, 1), message_of(HeartbeatWord::loss, 1),
      message_of(HeartbeatWord::loss, 2),     message_of(HeartbeatWord::speak, 2, "all"),
      message_of(HeartbeatWord::answered, 2), message_of(HeartbeatWord::farewell, 0, "it is over")};
  for (const HeartbeatMessage& lie : lies) {
    Ranks ranks;
    Heartbeat& first = ranks.begin(0);
    send_message(ranks.link_of(2), lie);
    const std::optional<RankLoss> loss = first.loss(kPatience);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 2u);
    EXPECT_TRUE(loss->died);
  }
}

// A moment so long ago that the clock does not have it.
TEST(HeartbeatMessage, IsNoneThatIsOlderThanAnyRun) {
  HeartbeatMessage message = message_of(1, standing_of(1), uint64_t{1} << 62);
  EXPECT_FALSE(read_message(std::as_bytes(std::span<const HeartbeatMessage, 1>(&message, 1)), 3));
  message.age_ms = 60'000;
  EXPECT_TRUE(read_message(std::as_bytes(std::span<const HeartbeatMessage, 1>(&message, 1)), 3));
}

TEST(HeartbeatMessage, CutsALongTextBetweenCharacters) {
  std::string text;
  while (text.size() < 1000) text += "\u00e9";
  const std::string cut = text_in(message_of(HeartbeatWord::farewell, 0, text));
  EXPECT_EQ(cut.size(), 446u);
  EXPECT_TRUE(text.starts_with(cut));
}

TEST(HeartbeatRendezvous, ConnectsEveryRankToTheFirst) {
  // On one host, and as if on two, over TCP.
  for (const bool two_hosts : {false, true}) {
    ThreadWorld world({.ranks = 3});
    std::array<std::vector<StreamSocket>, 3> links;
    const std::vector<std::string> failures = on_every_rank(world, [&](Communicator& mine) {
      OwnPlace place = own_place();
      if (two_hosts && mine.rank() == 2) place.host_name = "another";
      const std::vector<RankPlace> places = introduce_ranks(mine, place);
      EXPECT_EQ(places[2].host, two_hosts ? 1u : 0u);
      EXPECT_EQ(places[2].local_rank, two_hosts ? 0u : 2u);
      EXPECT_EQ(places[1].process, own_place().process);
      HeartbeatLinks met = meet_for_heartbeat(mine, places);
      EXPECT_EQ(met.why_none, "");
      links[mine.rank()] = std::move(met.links);
    });
    EXPECT_EQ(failures, std::vector<std::string>(3));
    for (uint32_t r = 1; r < 3; ++r) {
      const HeartbeatMessage sent = message_of(HeartbeatWord::ask, r);
      send_message(links[r][0], sent);
      HeartbeatMessage received;
      Reason reason;
      ASSERT_TRUE(read_whole(links[0][r], std::as_writable_bytes(std::span(&received, 1)),
                             Deadline(kPatience), reason));
      EXPECT_EQ(std::memcmp(&sent, &received, sizeof sent), 0);
    }
  }
}

TEST(RankPlaces, HostsOfOneNameAreOneHostOnlyWhereTheyAreOneMachine) {
  ThreadWorld world({.ranks = 4});
  on_every_rank(world, [&](Communicator& mine) {
    const std::array<OwnPlace, 4> own = {{{"a", 1, 10}, {"b", 1, 11}, {"a", 1, 12}, {"a", 2, 13}}};
    const std::vector<RankPlace> places = introduce_ranks(mine, own[mine.rank()]);
    const std::array<uint32_t, 4> hosts = {0, 1, 0, 2}, locals = {0, 0, 1, 0};
    for (uint32_t r = 0; r < 4; ++r) {
      EXPECT_EQ(places[r].rank, r);
      EXPECT_EQ(places[r].host, hosts[r]);
      EXPECT_EQ(places[r].local_rank, locals[r]);
      EXPECT_EQ(places[r].host_name, own[r].host_name);
      EXPECT_EQ(places[r].process, 10 + r);
    }
    EXPECT_EQ(text_of(places[1], 4), "rank 1 of 4 (host b, process 11)");
  });
}

}  // namespace
}  // namespace terrace::heartbeat_test
