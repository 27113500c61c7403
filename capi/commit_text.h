// The text of a commit: the program's own behind a line of what whoever goes on from it has to know before
// anything is read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/memory/space/space_layout.h>

namespace terrace::c {

struct CommitText {
  uint64_t chunk_elements = 0;  // 0: a commit of another program's, which is all text
  uint64_t tensors = 0;         // hash_of_streams() of what it holds; 0: an earlier Terrace made it
  // Greater than that of any commit of any number of ranks that this one has followed on. 0: an earlier
  // Terrace made it.
  uint64_t number = 0;
  std::string text;
};
std::string write_commit_text(const CommitText& text);
CommitText read_commit_text(std::string_view info);

// Of the tensors, and of where each lies in the states and in the frozen parameters of a commit, whatever the
// size of its chunks is and whoever has the memory.
uint64_t hash_of_streams(const SpaceLayout& tensors);

}  // namespace terrace::c
