// Files of JSON lines, an object on each, whose "text" is a text. It knows nothing of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/base/function_ref.h>

namespace terrace::data {

// Whether a file is of JSON lines, by its name (.jsonl, .ndjson) or by its first two lines. `beginning` has
// the first of them, or a MiB; `is_all` says whether it is the whole file. Throws Error(config) when they
// have no texts, and for a JSON array of objects under any name: nobody wants to train on their syntax.
bool are_json_lines(const std::filesystem::path& path, std::string_view beginning, bool is_all);

// Where a line begins in its file.
struct LinePlace {
  uint64_t line = 1;  // the first line is 1
  uint64_t byte = 0;
};

// Calls `text` with the text of every line that is not empty. `lines` are well-formed UTF-8 and begin at
// `place` of the file; a byte order mark at byte 0 is skipped. Throws Error(config) naming line and byte.
void for_each_text(const std::filesystem::path& path, std::string_view lines, LinePlace place,
                   FunctionRef<void(std::string_view)> text);

uint64_t newline_count(std::string_view text);

}  // namespace terrace::data
