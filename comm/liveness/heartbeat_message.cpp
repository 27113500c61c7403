#include <terrace/comm/liveness/heartbeat_message.h>

#include <cstring>

#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

// A year: no run has waited so long, and more might not fit into a moment of the clock.
constexpr uint64_t kMostAgeMs = uint64_t{366} * 24 * 3600 * 1000;

}  // namespace

bool may_say(uint32_t sender, const HeartbeatMessage& message) {
  const bool is_of_first_alone = message.word == HeartbeatWord::loss ||
                                 message.word == HeartbeatWord::answered ||
                                 message.word == HeartbeatWord::speak;
  return sender == 0 || (!is_of_first_alone && message.rank == sender);
}

HeartbeatMessage message_of(HeartbeatWord word, uint32_t rank, std::string_view text) {
  HeartbeatMessage message;
  message.word = word;
  message.rank = rank;
  const size_t room = message.text.size() - 1;
  if (text.size() > room) {
    text = text.substr(0, room);
    const size_t whole = well_formed_bytes(text);
    if (room - whole < 4) text = text.substr(0, whole);  // no character is cut in two
  }
  text.copy(message.text.data(), text.size());
  return message;
}

HeartbeatMessage message_of(uint32_t rank, const RankStanding& standing, uint64_t age_ms) {
  HeartbeatMessage message = message_of(HeartbeatWord::standing, rank, standing.operation);
  message.step = standing.step;
  message.operations = standing.operations;
  message.step_ns = standing.step_ns;
  message.rank_wait_ns = standing.rank_wait_ns;
  message.waits_for_ranks = standing.waits_for_ranks ? 1 : 0;
  message.age_ms = age_ms;
  return message;
}

std::string text_in(const HeartbeatMessage& message) {
  return {message.text.data(), strnlen(message.text.data(), message.text.size())};
}

RankStanding standing_in(const HeartbeatMessage& message) {
  return {.step = message.step,
          .operations = message.operations,
          .step_ns = message.step_ns,
          .rank_wait_ns = message.rank_wait_ns,
          .waits_for_ranks = message.waits_for_ranks != 0,
          .operation = text_in(message)};
}

std::optional<HeartbeatMessage> read_message(std::span<const std::byte, sizeof(HeartbeatMessage)> bytes,
                                             uint32_t ranks) {
  HeartbeatMessage message;
  std::memcpy(&message, bytes.data(), sizeof message);
  const bool is_word = message.word >= HeartbeatWord::standing && message.word <= HeartbeatWord::spoken;
  if (message.magic != HeartbeatMessage::kMagic || !is_word || message.rank >= ranks) return std::nullopt;
  if (message.age_ms > kMostAgeMs) return std::nullopt;
  return message;
}

}  // namespace terrace
