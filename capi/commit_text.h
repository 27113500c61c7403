// The text of a commit: the program's own behind a line with the size of chunks, which whoever resumes has to
// know before anything is read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::c {

struct CommitText {
  uint64_t chunk_elements = 0;  // 0: a commit of another program's, which is all text
  std::string text;
};
std::string write_commit_text(uint64_t chunk_elements, std::string_view text);
CommitText read_commit_text(std::string_view info);

}  // namespace terrace::c
