#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/text/json_cursor.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/data_errors.h>
#include <terrace/reference/data/internal/json_lines.h>

namespace terrace::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr JsonCursorErrors kLineErrors = {
    .what_failed = "cannot use",
    .advice = "give JSON lines as {\"text\": \"...\"}, one object on each, or text"};

struct Member {
  std::string key;
  char value_begin = 0;  // the first character of the value, which tells its kind
};

struct Object {
  std::optional<std::string> text;
  std::vector<Member> members;
  bool is_whole = false;  // its closing bracket was read
};

std::string shown(const LinePlace& place) {
  return fmt::format("line {} (byte {})", place.line, place.byte);
}

void read_object(JsonCursor& cursor, Object& object) {
  cursor.object([&](std::string& key) {
    object.members.push_back({key, cursor.next()});
    if (key == "text" && object.members.back().value_begin == '"') {
      object.text = cursor.text();
    } else {
      cursor.skip();
    }
  });
  object.is_whole = true;
}

Object read_line(const std::filesystem::path& path, std::string_view line, const LinePlace& place) {
  const std::string name = path.string();
  const std::string place_name = fmt::format("line {}, byte", place.line);
  JsonCursorErrors errors = kLineErrors;
  errors.place = place_name.c_str();
  errors.bytes_before = place.byte;
  JsonCursor cursor(line, name, errors);
  Object object;
  read_object(cursor, object);
  cursor.end();
  return object;
}

const char* kind_name(char value_begin) {
  switch (value_begin) {
    case '{':
      return "an object";
    case '[':
      return "a list";
    case 'n':
      return "null";
    case 't':
    case 'f':
      return "a boolean";
    default:
      return "a number";
  }
}

const Member* find_text_key(const Object& object) {
  const auto found = std::find_if(object.members.begin(), object.members.end(),
                                  [](const Member& member) { return member.key == "text"; });
  return found == object.members.end() ? nullptr : &*found;
}

// A key's value in jq: `.output`, `.["the answer"]`. No character of it ends the quotes of a shell.
std::string jq_value(const std::string& key) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_plain = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  if (!key.empty() && is_letter(key.front()) && std::all_of(key.begin(), key.end(), is_plain))
    return "." + key;
  std::string quoted;
  for (const char c : json_quoted(key)) quoted += c == '\'' ? std::string("\\u0027") : std::string(1, c);
  return ".[" + quoted + "]";
}

// The text of an object's conversation, or of all its values that are texts, in jq; empty if it has neither.
std::string jq_text(const Object& object) {
  std::string sum;
  size_t count = 0;
  for (const Member& member : object.members) {
    if (member.value_begin == '[' && member.key == "messages")
      return R"(([.messages[] | .role + ": " + .content] | join("\n")))";
    if (member.value_begin == '[' && member.key == "conversations")
      return R"(([.conversations[] | .from + ": " + .value] | join("\n")))";
    if (member.value_begin == '"') sum += (count++ > 0 ? R"( + "\n" + )" : "") + jq_value(member.key);
  }
  return count > 1 ? "(" + sum + ")" : sum;
}

// The jq filter that leaves objects with a text; empty if `object` has one, or nothing to make it of.
std::string jq_filter(const Object& object) {
  if (object.text) return "";
  if (find_text_key(object) != nullptr) return R"(select(.text | type == "string"))";
  const std::string text = jq_text(object);
  return text.empty() ? "" : "{text: " + text + "}";
}

bool is_named_so(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".jsonlines";
}

// Its output never has the name of its input.
std::string jq_command(const std::string& filter, const std::filesystem::path& path) {
  std::filesystem::path made = path;
  made.replace_extension(is_named_so(path) ? ".text.jsonl" : ".jsonl");
  return fmt::format("jq -c '{}' {} > {}", filter, path.string(), made.string());
}

std::string shown_keys(const Object& object) {
  std::string keys;
  for (const Member& member : object.members)
    keys += (keys.empty() ? "" : ", ") + json_quoted(member.key, 40);
  return keys.empty() ? "nothing" : keys;
}

[[noreturn]] void refuse_without_text(const std::filesystem::path& path, const LinePlace& place,
                                      const Object& object) {
  const std::string filter = jq_filter(object);
  const std::string command = jq_command(filter, path);
  if (const Member* text = find_text_key(object)) {
    cannot_use(path,
               fmt::format("{} is an object whose \"text\" is {}, not a text", shown(place),
                           kind_name(text->value_begin)),
               "leave such lines out: " + command);
  }
  cannot_use(path,
             fmt::format("{} is an object without a \"text\"; it has {}", shown(place), shown_keys(object)),
             filter.empty()
                 ? "give lines with one, or leave the file out"
                 : fmt::format("make lines with one, for example with {}, or leave the file out", command));
}

[[noreturn]] void refuse_array(const std::filesystem::path& path, const Object& first) {
  const std::string filter = first.is_whole ? jq_filter(first) : "";
  cannot_use(path, "it is one JSON array, not JSON lines with an object on each",
             fmt::format("make JSON lines of it with {}, or leave the file out",
                         jq_command(filter.empty() ? ".[]" : ".[] | " + filter, path)));
}

// The first object of a JSON array, as far as `beginning` has it; nothing if the text is no such array.
std::optional<Object> first_of_array(const std::filesystem::path& path, std::string_view beginning) {
  const std::string name = path.string();
  Object first;
  try {
    JsonCursor cursor(beginning.substr(0, well_formed_bytes(beginning)), name, kLineErrors);
    cursor.list([&] {
      if (first.is_whole) {
        cursor.skip();
      } else {
        read_object(cursor, first);
      }
    });
  } catch (const Error&) {  // an array is mostly longer than the beginning
  }
  if (first.members.empty()) return std::nullopt;
  return first;
}

bool is_object(const std::filesystem::path& path, std::string_view line) {
  try {
    read_line(path, line, {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

size_t mark_bytes(std::string_view beginning) {
  return beginning.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

}  // namespace

bool are_json_lines(const std::filesystem::path& path, std::string_view beginning, bool is_all) {
  const size_t mark = mark_bytes(beginning);
  if (const auto object = first_of_array(path, beginning.substr(mark))) refuse_array(path, *object);
  const bool is_named = is_named_so(path);
  const size_t first = beginning.find_first_not_of(kSpace, mark);
  if (!is_named && (first == std::string_view::npos || beginning[first] != '{')) return false;
  if (first == std::string_view::npos) cannot_use(path, "it has no JSON lines", kLineErrors.advice);
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
  const LinePlace place = {1 + newline_count(beginning.substr(0, first)), first};
  const Object object = read_line(path, repaired.empty() ? line : repaired, place);
  if (!object.text) refuse_without_text(path, place, object);
  return true;
}

void for_each_text(const std::filesystem::path& path, std::string_view lines, LinePlace place,
                   FunctionRef<void(std::string_view)> text) {
  const uint64_t first_byte = place.byte;
  for (size_t begin = first_byte == 0 ? mark_bytes(lines) : 0; begin < lines.size(); ++place.line) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    if (line.find_first_not_of(kSpace) != std::string_view::npos) {
      place.byte = first_byte + begin;
      const Object object = read_line(path, line, place);
      if (!object.text) refuse_without_text(path, place, object);
      text(*object.text);
    }
    begin = end + 1;
  }
}

uint64_t newline_count(std::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace terrace::data
