#include <terrace/base/text/json_writer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/text/utf8.h>

namespace terrace {
namespace {

constexpr size_t kIndentation = 2;

bool is_plain(char c) {
  return static_cast<uint8_t>(c) >= 0x20 && static_cast<uint8_t>(c) < 0x7F && c != '"' && c != '\\';
}

void append_quoted(std::string& out, std::string_view text, size_t longest) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    if (i >= longest) {
      out += "...";
      break;
    }
    const auto special =
        std::find_if_not(text.begin() + static_cast<ptrdiff_t>(i),
                         text.begin() + static_cast<ptrdiff_t>(std::min(longest, text.size())), is_plain);
    const auto plain = static_cast<size_t>(special - text.begin()) - i;
    if (plain > 0) {
      out += text.substr(i, plain);
      i += plain;
      continue;
    }
    const size_t length = first_code_point(text.substr(i)).bytes;
    const char c = text[i];
    if (length == 0) {
      out += "\xEF\xBF\xBD";  // U+FFFD
    } else if (length > 1) {
      out += text.substr(i, length);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    }
    i += std::max<size_t>(length, 1);
  }
  out += '"';
}

template <typename Whole>
void append_whole(std::string& out, Whole value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

void append_number(std::string& out, double value, int decimals) {
  if (!std::isfinite(value)) {
    out += "null";
  } else if (decimals >= 0) {
    fmt::format_to(std::back_inserter(out), "{:.{}f}", value, decimals);
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

}  // namespace

std::string json_quoted(std::string_view text, size_t longest) {
  std::string quoted;
  append_quoted(quoted, text, longest);
  return quoted;
}

JsonWriter& JsonWriter::begin(char opening, JsonLayout layout) {
  TERRACE_ASSERT(depth_ < kDeepest, fmt::format("more than {} containers in one another", kDeepest));
  separate(false);
  text_ += opening;
  levels_[depth_++] = {opening == '{' ? '}' : ']', layout == JsonLayout::lines, false};
  if (layout == JsonLayout::lines) indentation_ += kIndentation;
  return *this;
}

JsonWriter& JsonWriter::end() {
  TERRACE_ASSERT(depth_ > 0 && !has_key_, fmt::format("nothing to end after {}", text_));
  const Level& level = levels_[--depth_];
  if (level.lines) {
    indentation_ -= kIndentation;
    if (level.has_items && !break_) break_ = indentation_;
  }
  put_break();
  text_ += level.closing;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view key) {
  separate(true);
  append_quoted(text_, key, std::string_view::npos);
  text_ += options_.dense ? ":" : ": ";
  has_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(const JsonValue& value) {
  separate(false);
  switch (value.kind_) {
    case JsonValue::Kind::raw:
      text_ += value.text_;
      break;
    case JsonValue::Kind::text:
      append_quoted(text_, value.text_, options_.longest_text_bytes);
      break;
    case JsonValue::Kind::whole:
      append_whole(text_, value.whole_);
      break;
    case JsonValue::Kind::unsigned_whole:
      append_whole(text_, value.unsigned_whole_);
      break;
    case JsonValue::Kind::number:
      append_number(text_, value.number_, value.decimals_);
      break;
  }
  return *this;
}

JsonWriter& JsonWriter::members(std::initializer_list<Member> members) {
  for (const Member& each : members) member(each.key, each.value);
  return *this;
}

JsonWriter& JsonWriter::list(std::initializer_list<JsonValue> items) {
  begin_list();
  for (const JsonValue& item : items) value(item);
  return end();
}

JsonWriter& JsonWriter::break_line(size_t indentation) {
  break_ = indentation;
  return *this;
}

std::string json_object(std::initializer_list<JsonWriter::Member> members) {
  JsonWriter json;
  return json.object(members).take();
}

std::string JsonWriter::take() {
  TERRACE_ASSERT(depth_ == 0 && !has_key_, fmt::format("the document is not complete: {}", text_));
  return std::move(text_);
}

// What stands between the value before, or the bracket that opens the container, and the key or value that
// comes now.
void JsonWriter::separate(bool is_member) {
  if (std::exchange(has_key_, false)) {
    TERRACE_ASSERT(!is_member, fmt::format("a key without a value ends {}", text_));
    return;
  }
  if (depth_ == 0) {
    TERRACE_ASSERT(!is_member && text_.empty(), fmt::format("a document is one value, and it is {}", text_));
    return;
  }
  Level& level = levels_[depth_ - 1];
  TERRACE_ASSERT(is_member == (level.closing == '}'),
                 fmt::format("a member in a list, or an item without key: {}", text_));
  if (level.lines && !break_) break_ = indentation_;
  if (std::exchange(level.has_items, true)) text_ += options_.dense || break_ ? "," : ", ";
  put_break();
}

void JsonWriter::put_break() {
  if (!break_) return;
  text_ += '\n';
  text_.append(*break_, ' ');
  break_.reset();
}

}  // namespace terrace
