// The translation of patterns from Oniguruma's dialect to that of PCRE2. Declared in split_pattern.h.
#include <fmt/format.h>

#include <terrace/base/error.h>
#include <terrace/reference/data/internal/split_pattern.h>

namespace terrace::data {
namespace {

constexpr size_t kLongestPattern = 65536;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view name) : pattern_(pattern), name_(name) {}

  std::string run() {
    if (pattern_.size() > kLongestPattern) refuse("a pattern of that length");
    while (at_ < pattern_.size()) piece();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(
        ErrorKind::config,
        {"cannot use the pattern of", std::string(name_),
         fmt::format("at {} of \"{}\": {} means something else here than where the pattern comes from, "
                     "or nothing",
                     at_, pattern_.substr(0, kLongestPattern), what),
         "give a tokenizer whose patterns are those of GPT-2, Llama 3, Qwen 2 or their like"});
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  void piece() {
    switch (peek()) {
      case '\\':
        return escape();
      case '[':
        return set();
      case '(':
        return group();
      case '{':
        return interval();
      case '^':
      case '$':
        refuse(fmt::format("\"{}\"", peek()));
      default:
        return copy(1);
    }
  }

  // What follows a backslash, inside a set and outside.
  void escape() {
    const char c = peek(1);
    const auto put = [this](std::string_view text) {
      out_ += text;
      at_ += 2;
    };
    switch (c) {
      // PCRE2 counts U+180E as white space.
      case 's':
        return put("\\p{White_Space}");
      case 'S':
        return put("\\P{White_Space}");
      case 'd':
        return put("\\p{Nd}");
      case 'D':
        return put("\\P{Nd}");
      case 'p':
      case 'P':
        return property();
      case 'x':
      case 'u':
        return code_point();
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return copy(2);
      default:
        break;
    }
    if (c == '\0' || is_letter(c) || is_digit(c) || static_cast<uint8_t>(c) >= 0x80)
      refuse(fmt::format("\"{}\"", pattern_.substr(at_, 2)));
    copy(2);
  }

  // \p{L}, \p{Lu}: general categories are the same; a longer name is a script here, and must be one.
  void property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("a property without braces");
    std::string_view property = pattern_.substr(at_ + 3, end - at_ - 3);
    out_ += pattern_.substr(at_, 3);
    if (property.starts_with('^')) {
      out_ += '^';
      property.remove_prefix(1);
    }
    for (const char c : property) {
      if (!is_letter(c) && c != '_') refuse(fmt::format("\"{}\"", pattern_.substr(at_, end + 1 - at_)));
    }
    if (property.size() > 2) out_ += "sc:";
    out_ += property;
    out_ += '}';
    at_ = end + 1;
  }

  // \x{1F600}, \u00A0, \x41: as \x{...}.
  void code_point() {
    std::string digits;
    size_t length = 0;
    if (peek(1) == 'x' && peek(2) == '{') {
      for (length = 3; is_hex(peek(length)); ++length) digits += peek(length);
      if (peek(length++) != '}') digits.clear();
    } else {
      const size_t wanted = peek(1) == 'u' ? 4 : 2;
      for (length = 2; length < 2 + wanted && is_hex(peek(length)); ++length) digits += peek(length);
      // Two digits are a byte there; below 128 a byte is a character.
      if (digits.size() != wanted || (wanted == 2 && digits[0] >= '8')) digits.clear();
    }
    if (digits.empty() || digits.size() > 6) refuse(fmt::format("\"{}\"", pattern_.substr(at_, length)));
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += length;
  }

  void group() {
    if (peek(1) != '?') return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (pattern_.substr(at_, known.size()) == known) return copy(known.size());
    }
    refuse(fmt::format("\"{}\"", pattern_.substr(at_, 4)));
  }

  // {3}, {1,3}, {2,} and the lazy {1,3}?; what other engines make of the rest differs.
  void interval() {
    size_t length = 1;
    while (is_digit(peek(length))) ++length;
    const bool has_least = length > 1;
    const bool is_exact = peek(length) == '}';
    if (peek(length) == ',') {
      ++length;
      while (is_digit(peek(length))) ++length;
    }
    if (!has_least || peek(length) != '}') refuse("\"{\"");
    ++length;
    if (peek(length) == '+' || (is_exact && peek(length) == '?'))
      refuse(fmt::format("\"{}\"", pattern_.substr(at_, length + 1)));
    copy(length);
  }

  void set() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse("a set that begins with \"]\"");
    while (peek() != ']') {
      if (at_ >= pattern_.size()) refuse("a set without an end");
      if (peek() == '[' || (peek() == '&' && peek(1) == '&')) refuse("a set in a set");
      if (peek() == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  std::string_view pattern_;
  std::string_view name_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, std::string_view name) {
  return Translation(pattern, name).run();
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && !is_letter(c) && !is_digit(c) && c > ' ') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace terrace::data
