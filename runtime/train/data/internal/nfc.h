// Unicode normalisation form C, as the tokenizers library computes it: by the tables of Unicode 9.
#pragma once

#include <string>
#include <string_view>

namespace terrace::data {

// NFC of a well-formed text; `out` is where it goes when it is another text. Takes memory for a multiple of
// the text meanwhile.
std::string_view composed(std::string_view text, std::string& out);

}  // namespace terrace::data
