// PlayedRank: a rank that a test plays at the place where ranks meet, word by word.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/ports/socket/socket_rendezvous.h>

#include "comm/rank_worlds.h"
#include "support/patience.h"

namespace terrace::testing {

// A place where ranks meet: in a folder, and at a port of this host if the parameter says so.
class MeetingTest : public ::testing::TestWithParam<bool> {
 protected:
  SocketRendezvous rendezvous(uint32_t rank, uint32_t size,
                              std::chrono::nanoseconds timeout = kPatience) const {
    return {.rank = rank, .size = size, .place = place_, .run = "a run", .timeout = timeout};
  }
  const ScratchFolder folder_;
  const RendezvousPlace place_ = place_to_meet(folder_, GetParam());
};
inline std::string name_of_place(const ::testing::TestParamInfo<bool>& is_tcp) {
  return is_tcp.param ? "Tcp" : "Paths";
}

// What a rank that shall not meet the others says of it.
inline std::string refusal_of(const SocketRendezvous& rendezvous) {
  try {
    meet(rendezvous);
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "rank " << rendezvous.rank << " has met the others";
  return {};
}

template <typename Words>
bool write_words(const StreamSocket& socket, const Words& words) {
  Reason reason;
  return write_whole(socket, std::as_bytes(std::span(&words, 1)), Deadline(kPatience), reason);
}

// The proof of a rank that has said this hello and was told this number.
inline RankProof proof_of(const RunSecret& secret, const RankHello& hello, const RankNonce& told) {
  std::vector<std::byte> said(sizeof hello);
  std::memcpy(said.data(), &hello, sizeof hello);
  said.insert(said.end(), told.begin(), told.end());
  return secret.proof(ProvingSide::comes, said);
}

// A rank that a test plays: says hello at the place, as often as nobody is there, and proves the secret, or
// sends what it is given for a proof.
struct PlayedRank {
  StreamSocket socket;
  RankWelcome answer;  // the last one
  RankProof proof{};   // that it has sent
};
inline PlayedRank come_as(const RendezvousPlace& place, const RankHello& hello, const RunSecret& secret = {},
                          const std::optional<RankProof>& sends = {}) {
  const Deadline deadline(kPatience);
  Reason reason;
  while (!deadline.has_passed()) {
    PlayedRank rank{.socket = connect_to(place, deadline, reason), .answer = {}};
    const std::span<std::byte> answer = std::as_writable_bytes(std::span(&rank.answer, 1));
    const auto is_answered = [&] { return read_whole(rank.socket, answer, deadline, reason); };
    if (rank.socket.is_open() && write_words(rank.socket, hello) && is_answered()) {
      rank.proof = sends.value_or(proof_of(secret, hello, rank.answer.nonce));
      if (rank.answer.refused != 0 || (write_words(rank.socket, rank.proof) && is_answered())) return rank;
    }
    std::this_thread::yield();
  }
  ADD_FAILURE() << reason.text;
  return {};
}

inline RankWelcome answer_at(const RendezvousPlace& place, const RankHello& hello) {
  return come_as(place, hello).answer;
}

inline std::string why_refused(const RankWelcome& answer) {
  EXPECT_EQ(answer.refused, 1u);
  return answer.why.data();
}

}  // namespace terrace::testing
