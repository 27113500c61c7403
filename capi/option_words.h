// The library's advice names options of its C++ interface; here they become those of terrace.h.
#pragma once

#include <string>
#include <string_view>

namespace terrace::c {

std::string in_words_of_c(std::string_view text);

}  // namespace terrace::c
