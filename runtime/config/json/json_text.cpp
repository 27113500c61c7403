#include <terrace/runtime/config/json/json_text.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

constexpr size_t kNone = std::string_view::npos;

constexpr size_t kRun = 256;

size_t characters_in(std::string_view bytes) {
  const auto begins_one = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), begins_one));
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_mark(char c) {
  return std::string_view("{}[],:\"").find(c) != kNone;
}

// The place of the quote that ends the text beginning at `i`, or the end.
size_t end_of_text(std::string_view json, size_t i) {
  for (++i; i < json.size() && json[i] != '"'; ++i) i += json[i] == '\\' ? 1 : 0;
  return i;
}

// The end of the text, number or word that begins at `i`.
size_t end_of_scalar(std::string_view json, size_t i) {
  if (json[i] == '"') return std::min(json.size(), end_of_text(json, i) + 1);
  while (i < json.size() && !is_blank(json[i]) && !is_mark(json[i])) ++i;
  return i;
}

// The same with every comment turned into spaces, so that all offsets stay.
std::string without_comments(std::string_view text) {
  std::string blanked(text);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      i = end_of_text(text, i);
      continue;
    }
    const bool line = text[i] == '#' || text.substr(i, 2) == "//";
    if (!line && text.substr(i, 2) != "/*") continue;
    const size_t found = line ? text.find_first_of("\r\n", i) : text.find("*/", i + 2);
    if (!line && found == kNone) break;  // left to the parser, which reports its place
    const size_t end = found == kNone ? text.size() : found + (line ? 0 : 2);
    for (; i < end; ++i) {
      if (blanked[i] != '\n' && blanked[i] != '\r') blanked[i] = ' ';
    }
    --i;
  }
  return blanked;
}

// With a comma after each value that only a line's end parts from the next one in its brackets. Nothing but
// blanks follows on that line, so lines and columns stay.
std::string with_commas(std::string_view text) {
  std::string whole;
  whole.reserve(text.size());
  size_t value_end = kNone;  // in `whole`, of a value after which no mark has come
  size_t depth = 0;
  bool new_line = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (is_blank(c)) {
      new_line = new_line || c == '\n' || c == '\r';
      whole += text[i++];
      continue;
    }
    const bool begins_value = c != ',' && c != ':' && c != ']' && c != '}';
    if (begins_value && new_line && depth > 0 && value_end != kNone) whole.insert(value_end, 1, ',');
    const bool bracket = is_mark(c) && c != '"';
    const size_t end = bracket ? i + 1 : end_of_scalar(text, i);
    whole += text.substr(i, end - i);
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && depth > 0) --depth;
    value_end = !bracket || c == '}' || c == ']' ? whole.size() : kNone;
    new_line = false;
    i = end;
  }
  return whole;
}

}  // namespace

void throw_not_json(const std::string& origin, const std::string& reason, const std::string& advice) {
  throw NotJson(origin, reason, advice);
}

NotJson::NotJson(const std::string& origin, const std::string& reason, const std::string& advice)
    : Error(ErrorKind::config,
            {fmt::format("{}{}{}", origin, origin.empty() ? "" : ": ", reason), "", "", advice}),
      origin_(origin),
      reason_(reason) {}

JsonText::JsonText(std::string_view text, std::string_view name, size_t first_line, size_t deepest)
    : text_(with_commas(without_comments(text))), name_(name), first_line_(first_line) {
  find_lines();
  count_characters();
  check_characters();
  check_depth(deepest);
}

void JsonText::find_lines() {
  for (size_t i = 0; i < text_.size(); ++i) {
    const bool ends_line = text_[i] == '\n' || (text_[i] == '\r' && text_.substr(i + 1, 1) != "\n");
    if (ends_line) line_starts_.push_back(i + 1);
  }
}

void JsonText::count_characters() {
  size_t characters = 0;
  for (size_t i = 0; i < text_.size(); i += kRun) {
    characters_.push_back(characters);
    characters += characters_in(std::string_view(text_).substr(i, kRun));
  }
  characters_.push_back(characters);
}

size_t JsonText::characters_before(size_t offset) const {
  const size_t run = std::min(offset / kRun, characters_.size() - 1);
  return characters_[run] + characters_in(std::string_view(text_).substr(std::min(run * kRun, text_.size()),
                                                                         offset - run * kRun));
}

void JsonText::check_characters() const {
  const std::string_view text = text_;
  const size_t good = well_formed_bytes(text);
  if (const size_t nul = text.substr(0, good).find('\0'); nul != kNone)
    throw_not_json(at(nul), "a NUL byte", "save the file as UTF-8 text");
  if (good != text.size()) throw_not_json(at(good), "the file is not UTF-8", "save it as UTF-8 text");
}

void JsonText::check_depth(size_t deepest) const {
  size_t depth = 0;
  for (size_t i = 0; i < text_.size(); ++i) {
    const char c = text_[i];
    if (c == '"') i = end_of_text(text_, i);
    if ((c == '}' || c == ']') && depth > 0) --depth;
    if (c != '{' && c != '[') continue;
    if (++depth > deepest)
      throw_not_json(at(i), fmt::format("brackets are nested more than {} deep", deepest),
                     "no key needs so many levels");
  }
}

std::string JsonText::at(size_t offset) const {
  if (name_.empty()) return "";
  const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  const size_t line = static_cast<size_t>(next - line_starts_.begin()) + first_line_ - 1;
  return fmt::format("{}:{}:{}", name_, line, characters_before(offset) - characters_before(*(next - 1)) + 1);
}

}  // namespace terrace
