#include <terrace/base/text/shown_text.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

enum class Newlines { escaped, of_messages, kept };

struct Range {
  char32_t first, last;
};

constexpr Range kObeyed[] = {
    {0x00, 0x1F},      {0x7F, 0x9F},     {0x61C, 0x61C},    // controls; the Arabic letter mark
    {0x200B, 0x200F},  {0x2028, 0x202E}, {0x2060, 0x206F},  // no width, line ends, directions
    {0xFEFF, 0xFEFF},  {0xFFF9, 0xFFFB},                    // a byte order mark; annotations
    {0xE0000, 0xE007F}                                      // tags, which nothing shows
};

bool is_obeyed(char32_t value) {
  return std::any_of(std::begin(kObeyed), std::end(kObeyed),
                     [value](const Range& range) { return value >= range.first && value <= range.last; });
}

void append_escaped(std::string& shown, char32_t value) {
  const auto number = static_cast<uint32_t>(value);
  if (number < 0x10000) {
    shown += fmt::format("\\u{:04x}", number);
  } else {  // two surrogates, as JSON has it
    shown += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (number >> 10), 0xDC00 + (number & 0x3FF));
  }
}

bool stays(std::string_view rest, Newlines newlines) {
  if (newlines == Newlines::kept) return rest[0] == '\n' || rest[0] == '\t';
  return newlines == Newlines::of_messages && rest.starts_with("\n  ");
}

std::string shown_text(std::string_view text, Newlines newlines) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const std::string_view piece = text.substr(0, std::max<size_t>(point.bytes, 1));
    if (point.bytes == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    } else if (is_obeyed(point.value) && !stays(text, newlines)) {
      append_escaped(shown, point.value);
    } else {
      shown += piece;
    }
    text.remove_prefix(piece.size());
  }
  return shown;
}

}  // namespace

std::string shown_line(std::string_view text) {
  return shown_text(text, Newlines::escaped);
}

std::string shown_message(std::string_view text) {
  return shown_text(text, Newlines::of_messages);
}

std::string shown_lines(std::string_view text) {
  return shown_text(text, Newlines::kept);
}

}  // namespace terrace
