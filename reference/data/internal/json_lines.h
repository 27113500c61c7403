// Files of JSON lines: each line is an object whose "text" is a text. Code here knows nothing of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/base/function_ref.h>

namespace terrace::data {

// True if a file has JSON lines, judged by its name (.jsonl, .ndjson) or its first two lines. `beginning`
// holds at least the first of them, or a MiB; `is_all` says that it is the whole file. Throws Error(config)
// for lines without texts, and for a JSON array of objects under any name: nobody wants to train on JSON
// syntax.
bool are_json_lines(const std::filesystem::path& path, std::string_view beginning, bool is_all);

// The place in its file where a line begins.
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
