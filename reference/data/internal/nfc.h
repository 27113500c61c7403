// Unicode normalisation form C, with the tables of Unicode 9, as the tokenizers library computes it.
#pragma once

#include <string>
#include <string_view>

namespace terrace::data {

// Returns the NFC of a well-formed text: the text itself, or `out`, which then holds it. Takes memory for a
// multiple of the text meanwhile.
std::string_view composed(std::string_view text, std::string& out);

}  // namespace terrace::data
