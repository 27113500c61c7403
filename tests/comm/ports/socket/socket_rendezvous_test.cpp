#include <terrace/comm/ports/socket/socket_rendezvous.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/connections/rank_handshake.h>

#include "comm/played_rank.h"
#include "support/expect_error.h"
#include "support/few_descriptors.h"
#include "support/patience.h"

namespace terrace::socket_rendezvous_test {
namespace {

using namespace std::chrono_literals;
using testing::answer_at;
using testing::come_as;
using testing::expect_error;
using testing::kPatience;
using testing::PlayedRank;
using testing::refusal_of;

class SocketMeetings : public testing::MeetingTest {};
INSTANTIATE_TEST_SUITE_P(Places, SocketMeetings, ::testing::Bool(), testing::name_of_place);

TEST_P(SocketMeetings, ConnectEveryRankToEveryOther) {
  for (const uint32_t size : {1u, 2u, 3u, 7u}) {
    std::vector<std::vector<StreamSocket>> links(size);
    {
      std::vector<std::jthread> threads;
      for (uint32_t r = size; r-- > 0;)
        threads.emplace_back([&, r] { links[r] = meet(rendezvous(r, size)); });
    }
    for (uint32_t a = 0; a < size; ++a) {
      ASSERT_EQ(links[a].size(), size);
      EXPECT_FALSE(links[a][a].is_open());
      for (uint32_t b = 0; b < size; ++b) {
        if (a == b) continue;
        const std::byte sent{static_cast<uint8_t>(a * 16 + b)};
        ASSERT_EQ(send(links[a][b].fd(), &sent, 1, MSG_NOSIGNAL), 1);
        std::byte received{};
        Reason reason;
        EXPECT_TRUE(read_whole(links[b][a], {&received, 1}, Deadline(kPatience), reason)) << reason.text;
        EXPECT_EQ(received, sent);
      }
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

// A rank that is there may be late on a busy machine, so they wait for longer and longer.
TEST_P(SocketMeetings, NameTheRanksThatAreMissing) {
  std::array<std::string, 2> said;
  std::string wanted;
  for (std::chrono::milliseconds wait = 250ms; wait < kPatience; wait *= 4) {
    std::vector<std::jthread> threads;
    for (const uint32_t r : {0u, 2u})
      threads.emplace_back([&, r] { said[r / 2] = refusal_of(rendezvous(r, 5, wait)); });
    threads.clear();
    wanted = fmt::format("ranks 1, 3 and 4 of 5 did not come within {:g} s",
                         1e-3 * static_cast<double>(wait.count()));
    if (std::ranges::all_of(said,
                            [&](const std::string& one) { return one.find(wanted) != std::string::npos; }))
      break;
  }
  for (const std::string& one : said) EXPECT_NE(one.find(wanted), std::string::npos) << one;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(SocketMeetings, NameRankZeroWhereItIsMissing) {
  expect_error(ErrorKind::peer,
               {"do not meet", "rank 0 was not there within 0.2 s",
                GetParam() ? "Connection refused" : "No such file"},
               [&] { meet(rendezvous(1, 2, 200ms)); });
}

TEST_P(SocketMeetings, KeepWhatTheSystemSays) {
  const SocketRendezvous place = rendezvous(1, 2, 200ms);
  const testing::FewDescriptors none(0);
  try {
    meet(place);
    ADD_FAILURE() << "nobody is there";
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().error_number, EMFILE) << error.what();
    EXPECT_EQ(error.parts().advice, advice_on_limit(EMFILE));
  }
}

TEST_P(SocketMeetings, RefuseAnotherRun) {
  std::jthread first([&] { meet(rendezvous(0, 2)); });
  SocketRendezvous other = rendezvous(1, 2);
  other.run = "another run";
  const std::string said = refusal_of(other);
  EXPECT_NE(said.find("the ranks of another run meet here"), std::string::npos) << said;
  meet(rendezvous(1, 2));
}

TEST_P(SocketMeetings, RefuseWhoIsNoRankOfTheRun) {
  std::jthread first([&] { meet(rendezvous(0, 3)); });
  const RunKey key{run_number("a run"), 3, RankChannel::messages};
  struct Row {
    RankHello hello;
    const char* said;
  };
  std::vector<Row> rows;
  const auto refused = [&](const char* said) -> RankHello& {
    rows.push_back({hello_of(key, 1, 0), said});
    return rows.back().hello;
  };
  refused("no rank of Terrace").magic = 0x20544547;  // "GET "
  refused("another run").run ^= 1;
  refused("another run").channel = RankChannel::heartbeat;
  refused("rank 3 is none").rank = 3;
  refused("rank 0 is none").rank = 0;
  for (const Row& row : rows) {
    const RankWelcome answer = answer_at(place_, row.hello);
    EXPECT_EQ(answer.refused, 1u) << row.said;
    EXPECT_NE(std::string(answer.why.data()).find(row.said), std::string::npos) << answer.why.data();
  }
  std::jthread second([&] { meet(rendezvous(2, 3)); });
  meet(rendezvous(1, 3));
}

TEST_P(SocketMeetings, EndWhereARankOfTheRunTakesItForAnother) {
  const RunKey key{run_number("a run"), 3, RankChannel::messages};
  const auto ends_with = [&](const RankHello& hello, const std::string& said) {
    std::jthread first([&] {
      expect_error(ErrorKind::config, {"do not train the same", said}, [&] { meet(rendezvous(0, 3)); });
    });
    const RankWelcome answer = answer_at(place_, hello);
    EXPECT_EQ(answer.refused, 1u) << said;
    EXPECT_NE(std::string(answer.why.data()).find(said), std::string::npos) << answer.why.data();
  };
  RankHello hello = hello_of(key, 2, 0);
  hello.size = 4;
  ends_with(hello, "the number of ranks: 3 on rank 0, 4 on rank 2");
  hello.version = 9;
  ends_with(hello, "9 on rank 2");
}

TEST_P(SocketMeetings, RefuseASecondOfARank) {
  const ListeningSocket listener(place_);
  const RunKey key{run_number("a run"), 3, RankChannel::messages};
  RankHandshake handshake(listener, key);
  std::jthread first([&] { EXPECT_TRUE(handshake.take_in(1, Deadline(kPatience))[2]); });
  const PlayedRank stays = come_as(place_, hello_of(key, 2, 0));
  EXPECT_EQ(stays.answer.refused, 0u);
  const RankWelcome answer = answer_at(place_, hello_of(key, 2, 0));
  EXPECT_EQ(answer.refused, 1u);
  EXPECT_NE(std::string(answer.why.data()).find("rank 2 is here already"), std::string::npos);
  answer_at(place_, hello_of(key, 1, 0));
}

TEST_P(SocketMeetings, RefuseASecondRunThatMeetsAtThePlace) {
  const ListeningSocket first(place_);
  expect_error(ErrorKind::io,
               {"cannot listen", text_of(place_), "somebody listens there already", "another place"},
               [&] { meet(rendezvous(0, 2)); });
}

TEST(SocketRendezvousPlace, IsNoOtherFile) {
  const ScratchFolder folder;
  SocketRendezvous rendezvous{.rank = 0, .size = 2, .place = {.socket = folder.path()}};
  const std::vector<std::string> words = {"cannot listen", "something else than a socket", "TERRACE_MEET"};
  expect_error(ErrorKind::config, words, [&] { meet(rendezvous); });
  rendezvous.place.socket = folder.path() / "text";
  std::ofstream(rendezvous.place.socket) << "of the user";
  expect_error(ErrorKind::config, words, [&] { meet(rendezvous); });
  EXPECT_EQ(std::filesystem::file_size(rendezvous.place.socket), 11u);
}

TEST_P(SocketMeetings, WaitForNoStrangerThatSaysNothing) {
  std::jthread first([&] { meet(rendezvous(0, 2)); });
  Reason reason;
  StreamSocket silent;
  while (!silent.is_open()) silent = connect_to(place_, Deadline(kPatience), reason);
  const std::byte half{1};
  ASSERT_TRUE(write_whole(silent, {&half, 1}, Deadline(kPatience), reason));
  meet(rendezvous(1, 2));
}

TEST(SocketRendezvous, ReplacesASocketThatNobodyListensAt) {
  const ScratchFolder folder;
  const RendezvousPlace place{.socket = folder / "meet"};
  {
    const ListeningSocket dead(place);
    std::filesystem::create_hard_link(place.socket, folder / "kept");
  }
  std::filesystem::rename(folder / "kept", place.socket);
  std::jthread first([&] { meet({.rank = 0, .size = 2, .place = place}); });
  meet({.rank = 1, .size = 2, .place = place});
}

TEST(SocketRendezvous, LeavesAFileAtItsPlaceThatIsNoSocket) {
  const ScratchFolder folder;
  folder.write("meet", "mine");
  EXPECT_THROW(ListeningSocket({.socket = folder / "meet"}), Error);
  EXPECT_EQ(std::filesystem::file_size(folder / "meet"), 4u);
}

TEST(SocketRendezvous, TakesAPathThatIsTooLongForTheSystem) {
  const ScratchFolder folder;
  const std::filesystem::path deep = folder / std::string(150, 'a');
  std::filesystem::create_directory(deep);
  const RendezvousPlace place{.socket = deep / "meet"};
  std::jthread first([&] { meet({.rank = 0, .size = 2, .place = place}); });
  meet({.rank = 1, .size = 2, .place = place});
}

TEST(SocketRendezvous, IsWhereTheLauncherHasArrangedIt) {
  struct Row {
    Environment variables;
    RendezvousPlace place;
    std::string run;
    WhoComes who_comes = WhoComes::from_anywhere;
    bool has_secret = false;
  };
  const Environment torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  const auto with = [&](const Environment& more) {
    Environment all = more;
    all.insert(torchrun.begin(), torchrun.end());
    return all;
  };
  const std::vector<Row> rows = {
      {torchrun, {.host = "a", .port = 29501}, ""},
      {with({{"TORCHELASTIC_RUN_ID", "77"}}), {.host = "a", .port = 29501}, "77"},
      {with({{"MASTER_PORT", "65535"}}), {.host = "a", .port = 65534}, ""},
      {with({{"TERRACE_MEET", "b:5"}, {"TERRACE_RUN", "x"}}), {.host = "b", .port = 5}, "x"},
      {{{"TERRACE_RANK", "1"}, {"TERRACE_RANKS", "2"}, {"TERRACE_MEET", "/meet"}, {"TERRACE_RUN", "x"}},
       {.socket = "/meet"},
       "x"},
      {with({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
       {.host = "a", .port = 29501},
       "",
       WhoComes::from_here},
      {with({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"TERRACE_SECRET", "0123456789abcdef"}}),
       {.host = "a", .port = 29501},
       "",
       WhoComes::from_elsewhere_too,
       true}};
  for (const Row& row : rows) {
    const SocketRendezvous rendezvous = rendezvous_of(identify_rank(row.variables), row.variables);
    EXPECT_EQ(rendezvous.place, row.place);
    EXPECT_EQ(rendezvous.run, row.run);
    EXPECT_EQ(rendezvous.who_comes, row.who_comes);
    EXPECT_EQ(rendezvous.secret.is_given(), row.has_secret);
    EXPECT_EQ(rendezvous.rank, 1u);
    EXPECT_EQ(rendezvous.size, 2u);
  }
  const Environment nowhere = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  expect_error(ErrorKind::config, {"rank 1 of 2", "nothing says where they meet", "MASTER_ADDR", "torchrun"},
               [&] { rendezvous_of(identify_rank(nowhere), nowhere); });
}

TEST(SocketRendezvous, NamesAFolderThatIsNotThere) {
  expect_error(ErrorKind::io, {"cannot listen", "/not/there/meet", "No such file"},
               [] { meet({.rank = 0, .size = 2, .place = {.socket = "/not/there/meet"}}); });
}

TEST(SocketRendezvous, NamesAHostThatIsNotThere) {
  expect_error(ErrorKind::config, {"cannot find the host", "no such host", "MASTER_ADDR"},
               [] { meet({.rank = 1, .size = 2, .place = {.host = "no such host", .port = 9}}); });
}

}  // namespace
}  // namespace terrace::socket_rendezvous_test
