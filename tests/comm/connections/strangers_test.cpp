// Who comes to where ranks meet, or listens there, and is no rank of the run.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/ports/socket/socket_rendezvous.h>

#include "comm/connections/strangers.h"
#include "comm/played_rank.h"
#include "support/child_test.h"
#include "support/expect_error.h"
#include "support/patience.h"

namespace terrace::strangers_test {
namespace {

using namespace std::chrono_literals;
using testing::answer_at;
using testing::come_as;
using testing::expect_error;
using testing::kPatience;
using testing::PlayedRank;
using testing::refusal_of;
using testing::why_refused;
using testing::write_words;

class Meetings : public testing::MeetingTest {};
INSTANTIATE_TEST_SUITE_P(Places, Meetings, ::testing::Bool(), testing::name_of_place);

// --- Who has the secret ---

const RunSecret kSecret("the secret of this run"), kAnother("the secret of another run");

TEST_P(Meetings, TakeInRanksThatHaveTheSecretAndNoOthers) {
  const auto with = [&](uint32_t rank, const RunSecret& secret) {
    SocketRendezvous one = rendezvous(rank, 3);
    one.secret = secret;
    return one;
  };
  std::vector<std::vector<StreamSocket>> links(3);
  std::vector<std::jthread> threads;
  for (const uint32_t r : {0u, 2u}) threads.emplace_back([&, r] { links[r] = meet(with(r, kSecret)); });
  for (const RunSecret& secret : {kAnother, RunSecret()}) {
    const std::string said = refusal_of(with(1, secret));
    EXPECT_NE(said.find("rank 1 does not prove the secret of the run: set TERRACE_SECRET"), std::string::npos)
        << said;
  }
  links[1] = meet(with(1, kSecret));
  threads.clear();
  EXPECT_TRUE(links[1][2].is_open() && links[2][1].is_open() && links[0][1].is_open());
}

TEST_P(Meetings, RefuseASecretThatTheOthersDoNotHave) {
  std::jthread first([&] { meet(rendezvous(0, 2)); });
  SocketRendezvous one = rendezvous(1, 2);
  one.secret = kSecret;
  const std::string said = refusal_of(one);
  EXPECT_NE(said.find("to the same text for all of its ranks, or for none"), std::string::npos) << said;
  meet(rendezvous(1, 2));
}

TEST_P(Meetings, TakeNoProofThatWasHeardElsewhere) {
  const ListeningSocket listener(place_);
  const RunKey key{run_number("a run"), 3, RankChannel::messages, kSecret};
  RankHandshake handshake(listener, key);
  std::jthread first([&] { EXPECT_TRUE(handshake.take_in(1, Deadline(kPatience))[2]); });
  const RankHello hello = hello_of(key, 1, 0);
  const PlayedRank honest = come_as(place_, hello, kSecret);
  EXPECT_EQ(honest.answer.refused, 0u);
  // The same hello with the same proof, as another rank, and with its own number as a proof.
  RankHello other = hello;
  other.rank = 2;
  for (const RankHello& again : {hello, other}) {
    const std::string why = why_refused(come_as(place_, again, {}, honest.proof).answer);
    EXPECT_NE(why.find("does not prove the secret"), std::string::npos) << why;
  }
  // What the listening side has proved is no proof of one that comes.
  EXPECT_EQ(come_as(place_, other, {}, honest.answer.proof).answer.refused, 1u);
  EXPECT_EQ(come_as(place_, other, kSecret).answer.refused, 0u);
}

// A word for all is one of a rank that has shown who it is.
TEST_P(Meetings, GoOnWhereAStrangerContradictsThem) {
  SocketRendezvous one = rendezvous(0, 2);
  one.secret = kSecret;
  std::jthread first([&] { EXPECT_EQ(meet(one).size(), 2u); });
  const RunKey key{run_number("a run"), 2, RankChannel::messages};
  RankHello hello = hello_of(key, 1, 0);
  hello.size = 7;
  EXPECT_NE(why_refused(answer_at(place_, hello)).find("does not prove"), std::string::npos);
  hello.version = 9;
  EXPECT_NE(why_refused(answer_at(place_, hello)).find("3 on rank 0, 9 on rank 1"), std::string::npos);
  one.rank = 1;
  meet(one);
}

TEST_P(Meetings, EndWhereARankThatHasProvedItselfContradictsThem) {
  SocketRendezvous one = rendezvous(0, 2);
  one.secret = kSecret;
  std::jthread first([&] {
    expect_error(ErrorKind::config,
                 {"do not train the same", "the number of ranks: 2 on rank 0, 7 on rank 1"},
                 [&] { meet(one); });
  });
  RankHello hello = hello_of({run_number("a run"), 2, RankChannel::messages}, 1, 0);
  hello.size = 7;
  EXPECT_EQ(come_as(place_, hello, kSecret).answer.refused, 1u);
}

// Version 2 said 32 bytes, and read 504 of an answer.
TEST_P(Meetings, RefuseAnEarlierVersionInItsOwnWords) {
  std::jthread first([&] {
    expect_error(ErrorKind::config, {"3 on rank 0, 2 on rank 1"}, [&] { meet(rendezvous(0, 2)); });
  });
  RankHello hello = hello_of({run_number("a run"), 2, RankChannel::messages}, 1, 0);
  hello.version = 2;
  const Deadline deadline(30s);
  Reason reason;
  StreamSocket socket;
  while (!socket.is_open()) socket = connect_to(place_, deadline, reason);
  std::array<std::byte, 32> said{};
  std::memcpy(said.data(), &hello, said.size());
  ASSERT_TRUE(write_words(socket, said));
  RankWelcome answer;
  ASSERT_TRUE(read_whole(socket, std::as_writable_bytes(std::span(&answer, 1)).first(504), deadline, reason))
      << reason.text;
  EXPECT_EQ(why_refused(answer), "the version of what ranks say to each other: 3 on rank 0, 2 on rank 1");
}

// Nor does a rank believe whoever listens.
TEST_P(Meetings, BelieveNobodyWhoListensWithoutTheSecret) {
  const ListeningSocket listener(place_);
  RankHandshake impostor(listener, {run_number("a run"), 2, RankChannel::messages, kAnother});
  std::atomic<bool> done = false;
  std::jthread listens([&] {
    while (!done) EXPECT_TRUE(impostor.take_in_those_that_came().empty());
  });
  SocketRendezvous one = rendezvous(1, 2);
  one.secret = kSecret;
  EXPECT_NE(refusal_of(one).find("does not prove the secret"), std::string::npos);
  done = true;
  // One that takes everybody in shows as little.
  const RunKey key{run_number("a run"), 2, RankChannel::messages, kSecret};
  std::array<int, 2> fds{-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  const StreamSocket comes(fds[0]), plays(fds[1]);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(write_words(plays, RankWelcome()));
  RankVisit visit(comes, key);
  Reason reason;
  EXPECT_TRUE(visit.say_hello(1, 0, Deadline(kPatience), "rank 0", reason));
  EXPECT_FALSE(visit.read_welcome(Deadline(kPatience), "rank 0", reason));
  EXPECT_EQ(reason.text, "who listens there does not prove the secret of the run");
}

// --- Whose process it is ---

// What a rank finds that comes to somebody whom it does not believe.
std::string why_not_believed(const RendezvousPlace& place) {
  const RunKey key{run_number("a run"), 2, RankChannel::messages};
  Reason reason;
  StreamSocket socket;
  const Deadline deadline(kPatience);
  while (!socket.is_open() && !deadline.has_passed()) socket = connect_to(place, deadline, reason);
  RankVisit visit(socket, key);
  EXPECT_FALSE(visit.say_hello(1, 0, deadline, "rank 0", reason));
  return reason.text;
}

// 0: comes as a rank of the run. 1: plays one that believes everybody. 2: says that the run has another size,
// or version.
TEST(Stranger, DISABLED_AStrangerComes) {
  testing::become_nobody();
  const RendezvousPlace place = testing::place_in(testing::child_folder());
  RankHello hello = hello_of({run_number("a run"), 2, RankChannel::messages}, 1, 0);
  const std::string other_user = "it is a process of another user (uid ";
  if (testing::child_seed() == 0) {
    const std::string said = why_not_believed(place);
    EXPECT_NE(said.find("who listens there is not believed: " + other_user + "0,"), std::string::npos)
        << said;
    EXPECT_NE(said.find("TERRACE_SECRET"), std::string::npos) << said;
  } else if (testing::child_seed() == 1) {
    const std::string why = why_refused(answer_at(place, hello));
    EXPECT_NE(why.find(other_user + "65534,"), std::string::npos) << why;
    EXPECT_NE(why.find("TERRACE_SECRET"), std::string::npos) << why;
  } else {
    hello.size = 7;
    EXPECT_EQ(answer_at(place, hello).refused, 1u);
    hello.version = 2;
    EXPECT_EQ(answer_at(place, hello).refused, 1u);
  }
}

TEST_P(Meetings, RefuseProcessesOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const testing::OpenPlace open(folder_, GetParam());
  const ListeningSocket listener(open.place());
  open.open_to_all(listener.port());
  RendezvousPlace place = open.place();
  place.port = listener.port();
  RankHandshake handshake(listener, {run_number("a run"), 2, RankChannel::messages});
  std::jthread first([&] {
    EXPECT_TRUE(handshake.take_in(1, Deadline(kPatience))[1]);
    EXPECT_EQ(handshake.contradiction(), "");
    EXPECT_NE(handshake.last_refusal().find("another user"), std::string::npos) << handshake.last_refusal();
  });
  for (const uint32_t what : {0u, 1u, 2u})
    EXPECT_EQ(testing::run_test_in_child("Stranger.DISABLED_AStrangerComes", what, folder_.path()), 0);
  EXPECT_EQ(answer_at(place, hello_of({run_number("a run"), 2, RankChannel::messages}, 1, 0)).refused, 0u);
}

TEST(Stranger, DISABLED_AStrangerListens) {
  testing::become_nobody();
  const std::filesystem::path folder = testing::child_folder();
  const RendezvousPlace place = testing::place_in(folder);
  const ListeningSocket listener(place);
  if (!place.socket.empty()) chmod(place.socket.c_str(), 0777);
  RankHandshake handshake(listener, {run_number("a run"), 2, RankChannel::messages});
  EXPECT_TRUE(testing::comes_true([&] {
    EXPECT_TRUE(handshake.take_in_those_that_came().empty());
    return std::filesystem::exists(folder / "done");
  }));
}

TEST_P(Meetings, BelieveNoListenerOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  chmod(folder_.path().c_str(), 0777);
  std::ofstream(folder_ / "place") << text_of(place_);
  std::jthread listens([&] {
    EXPECT_EQ(testing::run_test_in_child("Stranger.DISABLED_AStrangerListens", 0, folder_.path()), 0);
  });
  const std::string said = why_not_believed(place_);
  EXPECT_NE(said.find("who listens there is not believed: it is a process of another user (uid 65534"),
            std::string::npos)
      << said;
  std::ofstream(folder_ / "done") << "done";
}

// --- Where it listens ---

bool can_be_reached(const std::string& host, uint16_t port) {
  Reason reason;
  return connect_to({.host = host, .port = port}, Deadline(kPatience), reason).is_open();
}

TEST(ListeningSocket, IsReachedAtTheAddressesOfItsHostAlone) {
  const ListeningSocket one({.host = "127.0.0.1"});
  EXPECT_TRUE(can_be_reached("127.0.0.1", one.port()));
  EXPECT_FALSE(can_be_reached("127.0.0.2", one.port()));
  const ListeningSocket named({.host = "localhost"});
  EXPECT_TRUE(can_be_reached("localhost", named.port()));
  EXPECT_FALSE(can_be_reached("127.0.0.2", named.port()));
  const ListeningSocket here({.host = "127.0.0.3"}, WhoComes::from_here);
  EXPECT_TRUE(can_be_reached("127.0.0.3", here.port()));
  EXPECT_FALSE(can_be_reached("127.0.0.1", here.port()));
}

// Others may know this host by an address that the name does not have here.
TEST(ListeningSocket, IsReachedAtAllAddressesWhereItsHostSaysNone) {
  for (const auto& [host, who] :
       {std::pair{"", WhoComes::from_anywhere}, std::pair{"localhost", WhoComes::from_elsewhere_too},
        std::pair{"127.0.0.1", WhoComes::from_elsewhere_too}, std::pair{"192.0.2.1", WhoComes::from_anywhere},
        std::pair{"no such host", WhoComes::from_anywhere}}) {
    const ListeningSocket all({.host = host}, who);
    EXPECT_TRUE(can_be_reached("127.0.0.1", all.port())) << host;
    EXPECT_TRUE(can_be_reached("127.0.0.2", all.port())) << host;
  }
}

}  // namespace
}  // namespace terrace::strangers_test
