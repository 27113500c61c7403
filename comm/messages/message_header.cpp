#include <terrace/comm/messages/message_header.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

static_assert(std::is_trivially_copyable_v<HeaderWords> && sizeof(HeaderWords) % sizeof(uint64_t) == 0);

// Copies as much of a text as there is room for and cuts no character in two. Returns the number of bytes.
template <size_t kRoom>
uint32_t put_text(std::string_view text, std::array<char, kRoom>& room) {
  if (text.size() > kRoom) {
    text = text.substr(0, kRoom);
    const size_t whole = well_formed_bytes(text);
    if (kRoom - whole < 4) text = text.substr(0, whole);
  }
  std::ranges::copy(text, room.begin());
  return static_cast<uint32_t>(text.size());
}

template <size_t kRoom>
std::string_view text_in(const std::array<char, kRoom>& room, uint32_t bytes) {
  return {room.data(), std::min<size_t>(bytes, kRoom)};
}

// A group without a distance between its ranks would be divided by, and one of ranks that there are not would
// be looked for behind the headers.
bool is_group(const HeaderWords& words, uint32_t size) {
  if (words.group_stride == 0 || words.group_count == 0) return false;
  return words.group_first + (words.group_count - uint64_t{1}) * words.group_stride < size;
}

bool can_be_read(const HeaderWords& words, uint32_t rank, uint32_t size) {
  return words.magic == kHeaderMagic && words.rank == rank && words.kind <= CommKind::ballot &&
         index_of(words.lane) < kLaneCount && is_group(words, size);
}

}  // namespace

MessageHeaders::MessageHeaders(uint32_t rank, uint32_t size)
    : rank_(rank),
      size_(size),
      header_bytes_(sizeof(HeaderWords) + size * sizeof(PartWords)),
      bytes_(size * header_bytes_),
      words_(size) {
  posted_.reserve(size);
}

std::span<std::byte> MessageHeaders::of(uint32_t rank) {
  return std::span(bytes_).subspan(rank * header_bytes_, header_bytes_);
}

void MessageHeaders::write(const CommOperation& operation, std::exception_ptr failure) {
  HeaderWords words;
  words.kind = operation.kind;
  words.lane = operation.lane;
  words.failed = failure != nullptr;
  words.rank = rank_;
  words.chunk = operation.note.chunk;
  words.index = operation.index;
  words.decision_count = operation.note.decision_count;
  words.part_bytes = operation.part_bytes;
  words.group_first = operation.group.first;
  words.group_stride = operation.group.stride;
  words.group_count = operation.group.count;
  words.what_bytes = put_text(operation.note.what, words.what);
  if (failure != nullptr) words.text_bytes = put_text(words_of_failure(failure), words.text);
  failure_ = std::move(failure);
  group_ = operation.group;
  std::byte* const at = of(rank_).data();
  std::memcpy(at, &words, sizeof words);
  for (uint32_t i = 0; i < group_.count; ++i) {
    const uint32_t other = group_.rank(i);
    const CommPart sent = operation.part_for(other), expected = operation.part_of(other);
    const PartWords of_part{sent.absent ? kAbsentBytes : sent.bytes, expected.bytes,
                            reinterpret_cast<uint64_t>(sent.memory)};
    std::memcpy(at + sizeof words + other * sizeof of_part, of_part.data(), sizeof of_part);
  }
}

MessageHeaders::PartWords MessageHeaders::part_words(uint32_t from, uint32_t to) const {
  PartWords words;
  std::memcpy(words.data(), bytes_.data() + from * header_bytes_ + sizeof(HeaderWords) + to * sizeof words,
              sizeof words);
  return words;
}

bool MessageHeaders::absent_from(uint32_t rank) const {
  return part_words(rank, rank_)[0] == kAbsentBytes;
}

uint64_t MessageHeaders::address_from(uint32_t rank) const {
  return part_words(rank, rank_)[2];
}

void MessageHeaders::read_parts(CommOperation& operation) {
  parts_.resize(size_t{size_} * 2 * size_);
  const uint32_t rank = operation.rank;
  const std::span<CommPart> sent = std::span(parts_).subspan(size_t{rank} * 2 * size_, size_);
  const std::span<CommPart> expected = std::span(parts_).subspan((size_t{rank} * 2 + 1) * size_, size_);
  for (uint32_t other = 0; other < size_; ++other) {
    const PartWords words = part_words(rank, other);
    const bool absent = words[0] == kAbsentBytes;
    sent[other] = {nullptr, absent ? 0 : words[0], absent};
    expected[other] = {nullptr, words[1]};
  }
  operation.to = sent;
  operation.from = expected;
}

PostedOperation MessageHeaders::read(uint32_t rank) {
  HeaderWords& words = words_[rank];
  std::memcpy(&words, of(rank).data(), sizeof words);
  PostedOperation posted;
  CommOperation& operation = posted.operation;
  operation.rank = rank;
  if (!can_be_read(words, rank, size_))
    throw PeerLoss{rank, "its messages cannot be read; it may run another version of Terrace"};
  operation.kind = words.kind;
  operation.lane = words.lane;
  operation.index = words.index;
  operation.note = {text_in(words.what, words.what_bytes), words.chunk, words.decision_count};
  operation.part_bytes = words.part_bytes;
  operation.group = {words.group_first, words.group_stride, words.group_count};
  if (words.kind == CommKind::exchange) read_parts(operation);
  if (words.failed != 0)
    posted.failure =
        std::make_exception_ptr(std::runtime_error(std::string(text_in(words.text, words.text_bytes))));
  return posted;
}

CommVerdict MessageHeaders::verdict() {
  posted_.clear();
  for (uint32_t i = 0; i < group_.count; ++i) posted_.push_back(read(group_.rank(i)));
  posted_[group_.index(rank_)].failure = failure_;
  return CommVerdict(posted_);
}

}  // namespace terrace
