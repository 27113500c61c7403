#include <terrace/comm/connections/peer_user.h>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "comm/connections/strangers.h"
#include "support/child_test.h"
#include "support/patience.h"
#include "support/scratch_folder.h"

namespace terrace::peer_user_test {
namespace {

StreamSocket connected_to(const RendezvousPlace& place) {
  Reason reason;
  StreamSocket socket = connect_to(place, Deadline(testing::kPatience), reason);
  EXPECT_TRUE(socket.is_open()) << reason.text;
  return socket;
}

StreamSocket accepted_by(const ListeningSocket& listener) {
  const Deadline deadline(testing::kPatience);
  while (!deadline.has_passed()) {
    if (StreamSocket socket = listener.accept(); socket.is_open()) return socket;
  }
  ADD_FAILURE() << "nobody came";
  return {};
}

TEST(PeerUser, IsThisUserWhereBothEndsAreOurs) {
  const ScratchFolder folder;
  for (RendezvousPlace place :
       {RendezvousPlace{.socket = folder / "meet"}, RendezvousPlace{.socket = "@terrace-peer-user"},
        RendezvousPlace{.host = "127.0.0.1"}, RendezvousPlace{.host = "localhost"},
        RendezvousPlace{.host = "0.0.0.0"}}) {
    const ListeningSocket listener(place);
    place.port = listener.port();
    const StreamSocket comes = connected_to(place), listens = accepted_by(listener);
    for (const StreamSocket* const socket : {&comes, &listens}) {
      const PeerUser user = peer_user_of(*socket);
      EXPECT_TRUE(user.is_here) << text_of(place);
      EXPECT_EQ(user.user, geteuid()) << text_of(place);
      EXPECT_EQ(why_not_own(user), "") << text_of(place);
    }
  }
}

// The kernel's table says root of a connection that no process has; so a process of root would take what
// anybody has left behind for its own.
TEST(PeerUser, IsNobodyWhereTheOtherSideHasEndedOrNotBegun) {
  const ListeningSocket listener({.host = "127.0.0.1"});
  const RendezvousPlace place{.host = "127.0.0.1", .port = listener.port()};
  StreamSocket comes = connected_to(place);
  EXPECT_EQ(peer_user_of(comes).user, std::nullopt);
  EXPECT_NE(why_not_own(peer_user_of(comes)), "");
  const StreamSocket listens = accepted_by(listener);
  EXPECT_EQ(peer_user_of(comes).user, geteuid());
  comes.close();
  EXPECT_EQ(peer_user_of(listens).user, std::nullopt);
}

TEST(PeerUser, DISABLED_ConnectsAsNobody) {
  testing::become_nobody();
  const StreamSocket socket = connected_to(testing::place_in(testing::child_folder()));
  std::byte one{};
  Reason reason;
  EXPECT_FALSE(read_whole(socket, {&one, 1}, Deadline(testing::kPatience),
                          reason));  // until the other side has looked
}

TEST(PeerUser, IsAnotherOneWhereThatIsAnotherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  for (const bool over_tcp : {false, true}) {
    const ScratchFolder folder;
    const testing::OpenPlace place(folder, over_tcp);
    const ListeningSocket listener(place.place());
    place.open_to_all(listener.port());
    std::jthread looks([&] {
      const StreamSocket listens = accepted_by(listener);
      const PeerUser user = peer_user_of(listens);
      EXPECT_TRUE(user.is_here);
      EXPECT_EQ(user.user, testing::kNobody);
      EXPECT_NE(why_not_own(user).find("another user (uid 65534"), std::string::npos) << why_not_own(user);
    });
    EXPECT_EQ(testing::run_test_in_child("PeerUser.DISABLED_ConnectsAsNobody", 0, folder.path()), 0);
  }
}

}  // namespace
}  // namespace terrace::peer_user_test
