// UTF-8: the code points of a text, and the repair of bytes that are not well-formed. It knows nothing of
// tokens. Every function is thread-safe and throws nothing but std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;  // 0: the text does not begin with a well-formed sequence (RFC 3629)
};

CodePoint first_code_point(std::string_view text);
void append_utf8(std::string& text, char32_t code_point);

// The length of the longest well-formed beginning of `text`.
size_t well_formed_bytes(std::string_view text);
// Puts U+FFFD in the place of every maximal broken piece, as decoders of the Web do; returns how many there
// were and sets `first_broken` to the offset of the first of them.
size_t replace_broken(std::string_view text, std::string& repaired, size_t& first_broken);

}  // namespace terrace
