#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/utf8.h>
#include <terrace/runtime/config/internal/json_cursor.h>
#include <terrace/runtime/config/json_document.h>
#include <terrace/runtime/data/internal/data_errors.h>
#include <terrace/runtime/data/internal/json_lines.h>

namespace terrace::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr JsonCursorErrors kErrors = {
    .what_failed = "cannot use",
    .advice = "give JSON lines as {\"text\": \"...\"}, one object on each, or text"};

struct Line {
  std::optional<std::string> text;
  std::string keys;  // "instruction", "output"
};

Line read_line(const std::filesystem::path& path, std::string_view line, uint64_t first_byte) {
  JsonCursorErrors errors = kErrors;
  errors.bytes_before = first_byte;
  const std::string name = path.string();
  JsonCursor cursor(line, name, errors);
  Line read;
  cursor.object([&](std::string& key) {
    read.keys += fmt::format("{}{}", read.keys.empty() ? "" : ", ", json_quoted(key, 40));
    if (key == "text" && cursor.next() == '"') {
      read.text = cursor.text();
    } else {
      cursor.skip();
    }
  });
  cursor.end();
  return read;
}

[[noreturn]] void refuse_without_text(const std::filesystem::path& path, uint64_t byte, const Line& line) {
  cannot_use(
      path,
      fmt::format("the line at byte {} is an object without a \"text\" that is a text; it has {}", byte,
                  line.keys.empty() ? "nothing" : line.keys),
      fmt::format("make lines with one, for example with jq -c '{{text: (.KEY1 + \"\\n\" + .KEY2)}}' {} "
                  "> texts.jsonl, or leave the file out",
                  path.string()));
}

bool is_object(const std::filesystem::path& path, std::string_view line) {
  try {
    read_line(path, line, 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool is_named_so(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".jsonlines";
}

}  // namespace

bool are_json_lines(const std::filesystem::path& path, std::string_view beginning, bool is_all) {
  const bool is_named = is_named_so(path);
  const size_t first = beginning.find_first_not_of(kSpace);
  if (!is_named && (first == std::string_view::npos || beginning[first] != '{')) return false;
  if (first == std::string_view::npos) cannot_use(path, "it has no JSON lines", kErrors.advice);
  const size_t end = beginning.find('\n', first);
  if (end == std::string_view::npos && !is_all) return is_named;  // its line is long, and read later
  const std::string_view line = beginning.substr(first, end == std::string_view::npos ? end : end - first);
  if (!is_named) {
    const size_t next = end == std::string_view::npos ? end : beginning.find_first_not_of(kSpace, end);
    if (next == std::string_view::npos || beginning[next] != '{' || !is_object(path, line)) return false;
  }
  std::string repaired;
  size_t broken = 0;
  if (well_formed_bytes(line) != line.size()) replace_broken(line, repaired, broken);
  const Line read = read_line(path, repaired.empty() ? line : repaired, first);
  if (!read.text) refuse_without_text(path, first, read);
  return true;
}

void for_each_text(const std::filesystem::path& path, std::string_view lines, uint64_t first_byte,
                   FunctionRef<void(std::string_view)> text) {
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    if (line.find_first_not_of(kSpace) != std::string_view::npos) {
      const Line read = read_line(path, line, first_byte + begin);
      if (!read.text) refuse_without_text(path, first_byte + begin, read);
      text(*read.text);
    }
    begin = end + 1;
  }
}

}  // namespace terrace::data
