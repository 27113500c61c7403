#include <terrace/base/text/json_cursor.h>

#include <fmt/format.h>

#include <limits>

#include <terrace/base/error.h>
#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

constexpr uint32_t kDeepestHeader = 64;

bool ends_plain_value(char c) {
  return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

JsonCursor::JsonCursor(std::string_view text, std::string_view name, const JsonCursorErrors& errors)
    : text_(text), name_(name), errors_(errors) {
  at_ = well_formed_bytes(text);
  if (at_ != text.size()) fail("the file is not UTF-8 here");
  at_ = 0;
}

void JsonCursor::fail(const std::string& reason) const {
  if (errors_.raise != nullptr) (*errors_.raise)(at_, reason);
  throw Error(errors_.kind,
              {errors_.what_failed, std::string(name_),
               fmt::format("{} {}: {}", errors_.place, errors_.bytes_before + at_, reason), errors_.advice});
}

void JsonCursor::space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

bool JsonCursor::take(char c) {
  space();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonCursor::expect(char c, const char* what) {
  if (!take(c)) fail(fmt::format("{} is expected here", what));
}

char JsonCursor::next() {
  space();
  if (at_ == text_.size()) fail("the text ends too early");
  return text_[at_];
}

void JsonCursor::object(FunctionRef<void(std::string& key)> member) {
  expect('{', "an object");
  if (++depth_ > kDeepestHeader) fail("it is nested too deeply");
  if (!take('}')) {
    do {
      std::string key = text();
      expect(':', "a colon");
      member(key);
    } while (take(','));
    expect('}', "a comma or the closing bracket");
  }
  --depth_;
}

void JsonCursor::list(FunctionRef<void()> item) {
  expect('[', "a list");
  if (++depth_ > kDeepestHeader) fail("it is nested too deeply");
  if (!take(']')) {
    do {
      item();
    } while (take(','));
    expect(']', "a comma or the closing bracket");
  }
  --depth_;
}

uint32_t JsonCursor::hex4() {
  uint32_t value = 0;
  for (int digit = 0; digit < 4; ++digit, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    uint32_t number = 0;
    if (c >= '0' && c <= '9') {
      number = static_cast<uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      number = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      fail("an escape needs four hexadecimal digits");
    }
    value = value << 4 | number;
  }
  return value;
}

void JsonCursor::escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) fail("a text has no end");
  const char c = text_[at_++];
  if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
    out += kValues[found];
    return;
  }
  if (c != 'u') fail("a text has an escape that JSON does not know");
  char32_t value = hex4();
  if (value >= 0xD800 && value < 0xDC00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const char32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("an escape is half of a surrogate pair");
    value = 0x10000 + ((value - 0xD800) << 10 | (low - 0xDC00));
  } else if (value >= 0xD800 && value <= 0xDFFF) {
    fail("an escape is half of a surrogate pair");
  }
  append_utf8(out, value);
}

std::string JsonCursor::text() {
  expect('"', "a text");
  std::string out;
  for (;;) {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<uint8_t>(text_[at_]) >= 0x20)
      ++at_;
    out.append(text_.substr(begin, at_ - begin));
    if (at_ == text_.size()) fail("a text has no end");
    if (static_cast<uint8_t>(text_[at_]) < 0x20) fail("a text holds a control character");
    if (text_[at_++] == '"') return out;
    escape(out);
  }
}

uint64_t JsonCursor::whole_number(uint64_t largest) {
  space();
  const size_t begin = at_;
  size_t end = begin;
  uint64_t value = 0;
  for (; end < text_.size() && text_[end] >= '0' && text_[end] <= '9'; ++end) {
    const auto digit = static_cast<uint64_t>(text_[end] - '0');
    if (digit > largest || value > (largest - digit) / 10)
      fail(largest == std::numeric_limits<uint64_t>::max() ? "a number is larger than 64 bits hold"
                                                           : fmt::format("a number above {}", largest));
    value = 10 * value + digit;
  }
  if (end == begin || (text_[begin] == '0' && end - begin > 1)) fail("a whole number is expected here");
  at_ = end;  // a fraction or an exponent is no comma and no bracket
  return value;
}

void JsonCursor::take_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail(fmt::format("\"{}\" is expected", word));
  at_ += word.size();
}

bool JsonCursor::boolean() {
  const bool value = next() == 't';
  take_word(value ? "true" : "false");
  return value;
}

bool JsonCursor::take_null() {
  if (next() != 'n') return false;
  take_word("null");
  return true;
}

void JsonCursor::skip_string() {
  for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\' ? 1 : 0;
  if (at_ >= text_.size()) {
    at_ = text_.size();
    fail("a text has no end");
  }
  ++at_;
}

std::string_view JsonCursor::skip() {
  next();
  const size_t begin = at_;
  uint32_t open = 0;  // brackets; whether they pair up is seen by who reads the text
  do {
    const char c = next();
    if (c == '"') {
      skip_string();
    } else if (c == '{' || c == '[') {
      if (depth_ + ++open > kDeepestHeader) fail("it is nested too deeply");
      ++at_;
    } else if (c == '}' || c == ']') {
      if (open == 0) fail("a value is expected");
      --open;
      ++at_;
    } else if (open > 0 && (c == ',' || c == ':')) {
      ++at_;
    } else {
      const size_t word = at_;
      while (at_ < text_.size() && !ends_plain_value(text_[at_]) && text_[at_] != ':' && text_[at_] != '"')
        ++at_;
      if (at_ == word) fail("a value is expected");
    }
  } while (open > 0);
  return text_.substr(begin, at_ - begin);
}

void JsonCursor::end() {
  space();
  if (at_ != text_.size()) fail("there is more after the end, where nothing but spaces may follow");
}

}  // namespace terrace
