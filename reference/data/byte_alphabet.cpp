#include <array>

#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/byte_alphabet.h>

namespace terrace::data {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<uint8_t, 512> byte{};
  std::array<bool, 512> is_letter{};

  constexpr Alphabet() {
    char32_t next = kFirstSubstitute;
    for (uint32_t b = 0; b < 256; ++b) {
      character[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = static_cast<uint8_t>(b);
      is_letter[character[b]] = true;
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t character_of_byte(uint8_t byte) {
  return kAlphabet.character[byte];
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (point.bytes == 0 || point.value >= kAlphabet.is_letter.size() || !kAlphabet.is_letter[point.value])
      return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[point.value]);
    text.remove_prefix(point.bytes);
  }
  return bytes;
}

}  // namespace terrace::data
