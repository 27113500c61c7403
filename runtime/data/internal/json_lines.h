// Files of JSON lines, an object on each, whose "text" is a text. It knows nothing of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/base/function_ref.h>

namespace terrace::data {

// Whether a file is of JSON lines, by its name (.jsonl, .ndjson) or by its first two lines. `beginning` has
// the first of them, or a MiB; `is_all` says whether it is the whole file. Throws Error(config) when they
// have no texts: what is trained on as its own syntax is not what anybody wants.
bool are_json_lines(const std::filesystem::path& path, std::string_view beginning, bool is_all);

// Calls `text` with the text of every line that is not empty. `lines` are well-formed UTF-8 and begin at byte
// `first_byte` of the file. Throws Error(config) naming the byte.
void for_each_text(const std::filesystem::path& path, std::string_view lines, uint64_t first_byte,
                   FunctionRef<void(std::string_view)> text);

}  // namespace terrace::data
