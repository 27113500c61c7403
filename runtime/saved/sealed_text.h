// Sealed text: JSON whose last member is the checksum of every byte before it, so that a damaged manifest is
// known from one that a later Terrace wrote. The end has the same bytes in every version of every format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace terrace::saved {

inline constexpr size_t kChecksumDigits = 16;

// Returns sixteen hexadecimal digits, lower case.
std::string hex_text(uint64_t value);
// Accepts exactly sixteen lower-case digits.
bool read_hex(std::string_view text, uint64_t& value);

// Completes an object, given up to its last member without the closing brace, with the checksum of its text.
std::string sealed(const std::string& body);
// Throws Error(corrupt), naming `path`, where the text does not end as sealed() ends it.
void require_seal(std::string_view text, const std::filesystem::path& path);

}  // namespace terrace::saved
