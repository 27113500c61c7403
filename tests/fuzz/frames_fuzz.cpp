// What processes send each other over sockets: the first byte says who reads the others. A peer that sends
// anything at all is refused, lost with a reason, or obeyed within the room that it has.
#include <fmt/format.h>
#include <sanitizer/allocator_interface.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/liveness/heartbeat_message.h>
#include <terrace/comm/liveness/launcher_link.h>
#include <terrace/comm/messages/message_header.h>
#include <terrace/comm/ports/socket/socket_link.h>
#include <terrace/runtime/observe/control/control_protocol.h>

#include "fuzz_input.h"

namespace {

using namespace terrace;
using Bytes = std::span<const std::byte>;

std::array<StreamSocket, 2> connected(int kind = SOCK_STREAM) {
  std::array<int, 2> fds{-1, -1};
  fuzz::require(socketpair(AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0,
                "sockets are there");
  return {StreamSocket(fds[0]), StreamSocket(fds[1])};
}

// As much of it as the other side's system takes.
size_t send_some(const StreamSocket& socket, Bytes bytes) {
  const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

// What a peer makes a link allocate at most: each early message may have grown to twice its length, and there
// are the channels of all tags.
constexpr size_t kMostOfLinkBytes = 3 * SocketLink::kRoomAheadBytes;
// Inputs are too short to fill that room; a peer that says the same again and again is not.
constexpr int kRounds = 16;

// A link that has begun some receives and sends, as a rank has.
void read_frames(Bytes input) {
  auto [mine, other] = connected();
  const size_t allocated_before = __sanitizer_get_current_allocated_bytes();
  SocketLink link(std::move(mine), 1);
  std::array<std::byte, 100> room{};
  std::array<SocketMessage, 6> messages;
  for (uint32_t i = 0; i < messages.size(); ++i) {
    messages[i] = {.other = 1,
                   .tag = i / 2,
                   .memory = room.data(),
                   .bytes = 1 + 33 * (i % 4),
                   .over = false,
                   .failure = {}};
    i % 2 == 0 ? link.receive(messages[i]) : link.send(messages[i]);
  }
  for (int round = 0; round < kRounds && link.why_left().empty(); ++round) {
    for (size_t sent = 0; sent < input.size();) {
      const size_t count = send_some(other, input.subspan(sent));
      sent += count;
      link.advance();
      if (count == 0) break;
    }
  }
  link.advance();
  const size_t allocated = __sanitizer_get_current_allocated_bytes();
  fuzz::require(allocated < allocated_before + kMostOfLinkBytes, "a peer takes no more room than it has");
  for (SocketMessage& message : messages) {
    fuzz::require(message.over || message.failure.empty(), "what fails is over");
    if (!message.over) link.drop(message);
  }
  link.say_farewell(0, "the end");
}

RunKey key_of_run() {
  return {run_number("a run"), 3, RankChannel::messages, RunSecret("a secret of sixteen bytes")};
}

// A handshake that somebody comes to who does not know the secret; and, where the input is long enough, one
// who says a hello that is the input and proves the secret for it.
void read_hello(Bytes input) {
  static const RendezvousPlace place{.socket = fmt::format("@terrace-fuzz-{}", getpid())};
  static const ListeningSocket listener(place);
  const RunKey key = key_of_run();
  RankHandshake handshake(listener, key);
  Reason reason;
  const StreamSocket other = connect_to(place, Deadline(std::chrono::seconds(5)), reason);
  const size_t hello_bytes = std::min(input.size(), sizeof(RankHello));
  send_some(other, input.first(hello_bytes));
  fuzz::require(handshake.take_in_those_that_came().empty(), "nobody is taken in by a hello alone");
  fuzz::require(handshake.take_in_those_that_came().empty(), "nobody is taken in by a hello alone");
  RankWelcome answer;
  const std::span<std::byte> room = std::as_writable_bytes(std::span(&answer, 1));
  const ssize_t count = recv(other.fd(), room.data(), room.size(), MSG_DONTWAIT);
  fuzz::require(count <= 0 || count == sizeof answer, "an answer is whole");
  const bool proves = input.size() > hello_bytes && input[hello_bytes] == std::byte{1};
  RankProof proof{};
  if (proves) {
    std::vector<std::byte> said(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(hello_bytes));
    said.insert(said.end(), answer.nonce.begin(), answer.nonce.end());
    proof = key.secret.proof(ProvingSide::comes, said);
  } else {
    const Bytes rest = input.subspan(hello_bytes);
    std::memcpy(proof.data(), rest.data(), std::min(rest.size(), proof.size()));
  }
  send_some(other, std::as_bytes(std::span(proof)));
  const std::vector<RankHandshake::Guest> guests = handshake.take_in_those_that_came();
  RankHello hello{};
  std::memcpy(&hello, input.data(), hello_bytes);
  const RankHello right = hello_of(key, hello.rank, hello.port);
  const bool is_right = hello.magic == right.magic && hello.version == right.version &&
                        hello.run == right.run && hello.size == right.size &&
                        hello.channel == right.channel && hello.rank < key.size;
  fuzz::require(guests.size() == (proves && is_right ? 1 : 0),
                "a rank that proves is taken in, and nobody else");
  fuzz::require(guests.empty() || guests[0].is_known, "who has proved is known");
  fuzz::require(proves || handshake.contradiction().empty(), "a stranger's word does not count for all");
}

// A rank that comes to somebody who says anything.
void read_welcome(Bytes input) {
  auto [mine, other] = connected();
  send_some(other, input);
  shutdown(other.fd(), SHUT_WR);
  const RunKey key = key_of_run();
  RankVisit visit(mine, key);
  Reason reason;
  fuzz::accepts({ErrorKind::config}, [&] {
    const Deadline deadline(std::chrono::seconds(5));
    const bool is_taken_in =
        visit.say_hello(1, 0, deadline, "rank 0", reason) && visit.read_welcome(deadline, "rank 0", reason);
    fuzz::require(!is_taken_in, "nobody is believed without the secret");
    fuzz::require(!reason.text.empty(), "who is not believed is told of");
  });
}

void read_lookout(Bytes input) {
  std::array<std::byte, sizeof(HeartbeatMessage)> bytes{};
  std::memcpy(bytes.data(), input.data(), std::min(input.size(), bytes.size()));
  for (const bool seals : {false, true}) {
    // What no mutation keeps.
    const HeartbeatMessage sealed;
    if (seals) std::memcpy(bytes.data(), &sealed, 2 * sizeof(uint32_t));
    const std::optional<HeartbeatMessage> message = read_message(bytes, 3);
    if (!message) continue;
    fuzz::require(message->rank < 3, "a message is of a rank");
    const auto said_at = std::chrono::steady_clock::now() - std::chrono::milliseconds(message->age_ms);
    fuzz::require(said_at <= std::chrono::steady_clock::now(), "what was said, was said before");
    const RankStanding standing = standing_in(*message);
    fuzz::require(standing.operation.size() < message->text.size(), "a text ends within its message");
    fuzz::require(may_say(0, *message), "the first rank speaks of all");
    fuzz::require(!may_say(1, *message) || message->rank == 1, "another rank speaks of itself");
  }
}

void read_header(Bytes input) {
  constexpr uint32_t kRanks = 3;
  for (const CommKind kind : {CommKind::all_gather, CommKind::exchange, CommKind::ballot}) {
    MessageHeaders headers(0, kRanks);
    std::array<std::byte, 24> memory{};
    std::array<CommPart, kRanks> to{}, from{};
    const CommOperation mine{.kind = kind,
                             .group = {0, 1, kRanks},
                             .note = {"parameters", 7, 9},
                             .whole = memory,
                             .part_bytes = 8,
                             .to = to,
                             .from = from};
    headers.write(mine, nullptr);
    for (uint32_t other = 1; other < kRanks; ++other) {
      const std::span<std::byte> header = headers.of(other);
      std::ranges::copy(headers.of(0), header.begin());
      std::memcpy(header.data() + offsetof(HeaderWords, rank), &other, sizeof other);
      if (other > 1) continue;
      // The input lies over a header that is right, from where its first byte says.
      const size_t begin = input.empty() ? 0 : static_cast<size_t>(input[0]) % header.size();
      const Bytes rest = input.empty() ? input : input.subspan(1);
      std::memcpy(header.data() + begin, rest.data(), std::min(rest.size(), header.size() - begin));
    }
    try {
      const std::exception_ptr failure = headers.verdict().failure_of(mine);
      fuzz::require(failure == nullptr || !input.empty(), "ranks that say the same have no failure");
      if (failure != nullptr) fuzz::require(!words_of_failure(failure).empty(), "a failure says why");
      for (uint32_t other = 1; other < kRanks; ++other)
        headers.absent_from(other), headers.address_from(other);
    } catch (const PeerLoss& loss) {
      fuzz::require(loss.rank == 1, "the rank that sent it is to blame");
    }
  }
}

void read_launcher(Bytes input) {
  auto [mine, other] = connected();
  LauncherLink link(std::move(mine));
  send_some(other, input);
  other.close();
  size_t words = 0;
  while (!link.has_ended()) words += link.hear().has_value() ? 1 : 0;
  fuzz::require(words <= input.size() / sizeof(LauncherWord), "words have their length");
}

void read_control(Bytes input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  LineBuffer lines(kLongestRequestBytes);
  lines.add(text);
  while (const std::optional<std::string> line = lines.next())
    fuzz::accepts({ErrorKind::config}, [&] { parse_control_request(*line); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 7) {
    case 0:
      read_frames(input);
      break;
    case 1:
      read_hello(input);
      break;
    case 2:
      read_welcome(input);
      break;
    case 3:
      read_lookout(input);
      break;
    case 4:
      read_header(input);
      break;
    case 5:
      read_launcher(input);
      break;
    default:
      read_control(input);
  }
  return 0;
}
