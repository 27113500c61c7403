// The alphabet in which byte-level tokenizers write bytes: every byte stands as one printable character
// (Radford et al., 2019): those of Latin-1 that are printable as themselves, the others from U+0100 on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::data {

// The character that stands for a byte.
char32_t character_of_byte(uint8_t byte);
// The bytes that a token's text stands for; nothing when a character of it is not of the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace terrace::data
