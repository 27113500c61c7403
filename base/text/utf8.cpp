#include <terrace/base/text/utf8.h>

#include <cstring>

namespace terrace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What the bytes after a first byte must be: how many, and the range of the first of them.
struct Sequence {
  uint32_t following = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Sequence sequence_of(uint8_t first) {
  if (first >= 0xC2 && first <= 0xDF) return {1};
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first >= 0xE1 && first <= 0xEF) return {2};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  if (first >= 0xF1 && first <= 0xF3) return {3};
  if (first == 0xF4) return {3, 0x80, 0x8F};
  return {0};
}

uint8_t byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
}

// How many bytes at the beginning belong to a sequence that is well-formed as far as it goes; at least 1.
size_t broken_bytes(std::string_view text) {
  const Sequence sequence = sequence_of(byte_at(text, 0));
  size_t length = 1;
  if (sequence.following == 0) return length;
  const uint8_t second = byte_at(text, 1);
  if (second < sequence.low || second > sequence.high) return length;
  for (length = 2; length <= sequence.following && (byte_at(text, length) & 0xC0) == 0x80;) ++length;
  return length;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  if (text.empty()) return {};
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return {first, 1};
  const Sequence sequence = sequence_of(first);
  if (sequence.following == 0 || broken_bytes(text) != sequence.following + 1) return {};
  char32_t value = first & (0x3Fu >> sequence.following);
  for (size_t i = 1; i <= sequence.following; ++i) value = value << 6 | (byte_at(text, i) & 0x3Fu);
  return {value, sequence.following + 1};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

size_t well_formed_bytes(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight = 0;
    while (i + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) != 0) break;
      i += sizeof(eight);
    }
    if (i == text.size()) break;
    const size_t bytes = first_code_point(text.substr(i)).bytes;
    if (bytes == 0) break;
    i += bytes;
  }
  return i;
}

size_t replace_broken(std::string_view text, std::string& repaired, size_t& first_broken) {
  repaired.clear();
  size_t count = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t good = well_formed_bytes(text.substr(i));
    repaired.append(text.substr(i, good));
    i += good;
    if (i == text.size()) break;
    if (count++ == 0) first_broken = i;
    repaired.append(kReplacement);
    i += broken_bytes(text.substr(i));
  }
  return count;
}

}  // namespace terrace
