// The alphabet in which byte-level tokenizers write bytes (Radford et al., 2019). Every byte is one printable
// character: itself if it is printable in Latin-1, else one from U+0100 on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::data {

// Returns the character of a byte.
char32_t character_of_byte(uint8_t byte);
// Returns the bytes of a token's text; nothing if a character is not in the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace terrace::data
