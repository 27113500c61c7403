#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <terrace/base/error.h>
#include <terrace/runtime/config/json_document.h>
#include <terrace/runtime/weights/internal/header_reader.h>

namespace terrace::weights {

void HeaderReader::refuse(const std::string& reason) const {
  throw Error(ErrorKind::corrupt,
              {"cannot use the safetensors file", std::string(file_),
               fmt::format("its header is wrong at byte {}: {}", sizeof(uint64_t) + at_, reason),
               "it is damaged, or no safetensors file: fetch it again from where it came"});
}

void HeaderReader::skip_spaces() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

// 0 at the end, which is no character of JSON.
char HeaderReader::peek() {
  skip_spaces();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void HeaderReader::expect(char c, const char* what) {
  if (peek() != c) refuse(fmt::format("{} is expected here", what));
  ++at_;
}

void HeaderReader::begin_object() {
  expect('{', "an object");
  first_ = true;
}

void HeaderReader::begin_list() {
  expect('[', "a list");
  first_ = true;
}

bool HeaderReader::next(char closing) {
  if (peek() == closing) {
    ++at_;
    first_ = false;  // of whatever is around it: this value was one of its members
    return false;
  }
  if (!first_) expect(',', "a comma or the closing bracket");
  first_ = false;
  return true;
}

bool HeaderReader::next_member(std::string& key) {
  if (!next('}')) return false;
  key = text();
  expect(':', "a colon");
  return true;
}

bool HeaderReader::next_item() {
  return next(']');
}

// The shared reader of JSON decodes what is not plain ASCII, and refuses what is not UTF-8.
std::string HeaderReader::text() {
  if (peek() != '"') refuse("a text is expected here");
  const size_t begin = at_ + 1;
  size_t end = begin;
  bool plain = true;
  for (; end < text_.size() && text_[end] != '"'; ++end) {
    const char c = text_[end];
    if (static_cast<uint8_t>(c) < 0x20) refuse("a text holds a control character");
    plain = plain && c != '\\' && static_cast<uint8_t>(c) < 0x7F;
    if (c == '\\') ++end;
  }
  if (end >= text_.size()) refuse("a text has no end");
  std::string value;
  if (plain) {
    value = text_.substr(begin, end - begin);
  } else {
    try {
      value = parse_json(text_.substr(at_, end + 1 - at_), "text").text;
    } catch (const Error&) {
      refuse("a text is not UTF-8, or has an escape that JSON does not know");
    }
  }
  at_ = end + 1;
  return value;
}

uint64_t HeaderReader::whole_number() {
  const char first = peek();
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  const auto length = static_cast<size_t>(end - (text_.data() + at_));
  if (status == std::errc::result_out_of_range) refuse("a number is larger than 64 bits hold");
  if (status != std::errc() || (first == '0' && length > 1)) refuse("a whole number from 0 is expected here");
  at_ += length;
  return value;
}

void HeaderReader::end() {
  skip_spaces();
  if (at_ < text_.size()) refuse("nothing but spaces may follow the last bracket");
}

}  // namespace terrace::weights
