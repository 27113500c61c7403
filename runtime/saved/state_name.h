// The names of saved states: one name of a folder, which no text of a user or of a file can turn into a path.
#pragma once

#include <string>
#include <string_view>

namespace terrace::saved {

inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kNextName = ".latest.next";

// Returns why the text is not the name of a saved state, in words; empty where it is one. It is a plain name
// of at most 200 bytes of UTF-8, without separators and control characters, that does not begin with a dot
// and is not one of the folder's own.
std::string why_no_state_name(std::string_view name);

}  // namespace terrace::saved
