#include <terrace/runtime/config/json_document.h>

#include <fmt/format.h>
#include <json/json.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include <terrace/base/error.h>
#include <terrace/base/utf8.h>

namespace terrace {
namespace {

constexpr int kDeepest = 64;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

[[noreturn]] void not_json(const std::string& origin, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {fmt::format("{}: {}", origin, reason), "", "", advice});
}

// The place of the quote that ends the text beginning at `i`, or the end.
size_t end_of_text(std::string_view json, size_t i) {
  for (++i; i < json.size() && json[i] != '"'; ++i) i += json[i] == '\\' ? 1 : 0;
  return i;
}

// The same with every comment turned into spaces, so that all offsets stay. jsoncpp does not take comments
// everywhere.
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
    if (!line && found == std::string_view::npos) break;  // left to the parser, which reports its place
    const size_t end = found == std::string_view::npos ? text.size() : found + (line ? 0 : 2);
    for (; i < end; ++i) {
      if (blanked[i] != '\n' && blanked[i] != '\r') blanked[i] = ' ';
    }
    --i;
  }
  return blanked;
}

// Where the lines and the keys of a text without comments begin. Keys need a look at the text because jsoncpp
// knows the place of values only: the key of a value is the last text before it that a colon follows.
class Places {
 public:
  Places(std::string_view text, std::string_view name, size_t first_line)
      : text_(text), name_(name), first_line_(first_line) {
    line_starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_starts_.push_back(i + 1);
    }
    find_keys();
  }

  std::string at(size_t offset) const {
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
    const size_t line = static_cast<size_t>(next - line_starts_.begin()) + first_line_ - 1;
    return fmt::format("{}:{}:{}", name_, line, offset - *(next - 1) + 1);
  }
  std::string of_key_before(size_t value_offset) const {
    const auto next = std::upper_bound(keys_.begin(), keys_.end(), value_offset);
    return at(next == keys_.begin() ? value_offset : *(next - 1));
  }
  size_t offset_of(size_t line, size_t column) const {
    if (line == 0 || line > line_starts_.size()) return text_.size();
    return std::min(text_.size(), line_starts_[line - 1] + column - 1);
  }
  std::string_view text() const { return text_; }

 private:
  void find_keys() {
    constexpr size_t none = std::string_view::npos;
    size_t last_text = none;
    for (size_t i = 0; i < text_.size(); ++i) {
      const char c = text_[i];
      if (c == '"') {
        last_text = i;
        i = end_of_text(text_, i);
      } else if (c == ':' && last_text != none) {
        keys_.push_back(last_text);
        last_text = none;
      }
    }
  }

  std::string_view text_;
  std::string_view name_;
  size_t first_line_;
  std::vector<size_t> line_starts_;
  std::vector<size_t> keys_;
};

void check_characters(const Places& places) {
  const std::string_view text = places.text();
  const size_t good = well_formed_bytes(text);
  if (const size_t nul = text.substr(0, good).find('\0'); nul != std::string_view::npos)
    not_json(places.at(nul), "a NUL byte", "save the file as UTF-8 text");
  if (good != text.size()) not_json(places.at(good), "the file is not UTF-8", "save it as UTF-8 text");
}

// jsoncpp takes "-", "01" and "1." for numbers.
bool is_json_number(std::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - begin;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const size_t whole_begin = i;
  const size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[whole_begin] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

JsonNode number_node(std::string_view literal, const std::string& origin) {
  JsonNode node;
  node.kind = JsonNode::Kind::number;
  node.text = std::string(literal);
  const auto [end, status] = std::from_chars(literal.data(), literal.data() + literal.size(), node.number);
  if (!is_json_number(literal) || status != std::errc() || end != literal.data() + literal.size()) {
    not_json(origin, fmt::format("{} is not a number", json_quoted(literal, 40)),
             "write numbers as 16, 0.9 or 5e8, of a size that a double can hold");
  }
  return node;
}

JsonNode convert(const Json::Value& value, const Places& places) {
  JsonNode node;
  const size_t offset = static_cast<size_t>(value.getOffsetStart());
  const std::string origin = places.at(offset);
  switch (value.type()) {
    case Json::nullValue:
      break;
    case Json::booleanValue:
      node.kind = JsonNode::Kind::boolean;
      node.boolean = value.asBool();
      break;
    case Json::intValue:
    case Json::uintValue:
    case Json::realValue:
      node = number_node(places.text().substr(offset, static_cast<size_t>(value.getOffsetLimit()) - offset),
                         origin);
      break;
    case Json::stringValue:
      node.kind = JsonNode::Kind::text;
      node.text = value.asString();
      break;
    case Json::arrayValue:
      node.kind = JsonNode::Kind::list;
      for (const Json::Value& item : value) node.items.push_back(convert(item, places));
      break;
    case Json::objectValue: {
      node.kind = JsonNode::Kind::object;
      std::vector<std::pair<ptrdiff_t, std::string>> in_file_order;
      for (const std::string& key : value.getMemberNames())
        in_file_order.push_back({value[key].getOffsetStart(), key});
      std::sort(in_file_order.begin(), in_file_order.end());
      for (const auto& [member_offset, key] : in_file_order) {
        const std::string key_origin = places.of_key_before(static_cast<size_t>(member_offset));
        node.members.push_back({key, key_origin, convert(value[key], places)});
      }
      break;
    }
  }
  node.origin = origin;
  return node;
}

// "* Line 1, Column 9\n  Duplicate key: 'a'\n..." in our words.
[[noreturn]] void report(const std::string& jsoncpp_message, const Places& places) {
  size_t line = 1;
  size_t column = 1;
  if (std::sscanf(jsoncpp_message.c_str(), "* Line %zu, Column %zu", &line, &column) != 2) line = column = 1;
  const size_t offset = places.offset_of(line, column);
  const size_t begin = jsoncpp_message.find('\n');
  std::string reason = begin == std::string::npos ? jsoncpp_message : jsoncpp_message.substr(begin + 1);
  reason = reason.substr(0, reason.find('\n'));
  reason.erase(0, reason.find_first_not_of(' '));
  std::string advice = "the file is read as JSON with //, # and /* */ comments and trailing commas";
  if (reason.starts_with("Duplicate key"))
    advice = "a key may stand only once in a section: remove one of them";
  // The key itself goes through the quoting of all messages.
  constexpr std::string_view duplicate = "Duplicate key: '";
  if (reason.starts_with(duplicate) && reason.ends_with("'")) {
    reason = "duplicate key " +
             json_quoted(reason.substr(duplicate.size(), reason.size() - duplicate.size() - 1), 80);
  } else {
    const std::string quoted = json_quoted(reason, 200);
    reason = "not valid JSON: " + quoted.substr(1, quoted.size() - 2);
  }
  not_json(places.at(offset), reason, advice);
}

Json::CharReaderBuilder reader_settings() {
  Json::CharReaderBuilder builder;
  builder["collectComments"] = false;
  builder["allowComments"] = false;
  builder["allowTrailingCommas"] = true;
  builder["rejectDupKeys"] = true;
  builder["failIfExtra"] = true;
  builder["stackLimit"] = kDeepest;
  return builder;
}

}  // namespace

JsonNode parse_json(std::string_view text, std::string_view name, size_t first_line) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::string blanked = without_comments(text);
  const Places places(blanked, name, first_line);
  check_characters(places);
  const std::unique_ptr<Json::CharReader> reader(reader_settings().newCharReader());
  Json::Value root;
  std::string message;
  bool parsed = false;
  try {
    parsed = reader->parse(blanked.data(), blanked.data() + blanked.size(), &root, &message);
  } catch (const Json::Exception&) {  // the only one it throws: its stack limit
    not_json(std::string(name), fmt::format("brackets are nested more than {} deep", kDeepest),
             "no key needs so many levels");
  }
  if (!parsed) report(message, places);
  return convert(root, places);
}

std::string json_quoted(std::string_view text, size_t longest) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    if (i >= longest) {
      quoted += "...";
      break;
    }
    const size_t length = first_code_point(text.substr(i)).bytes;
    const char c = text[i];
    if (length == 0) {
      quoted += "\xEF\xBF\xBD";  // U+FFFD
    } else if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return quoted + '"';
}

std::string json_text(const JsonNode& node) {
  switch (node.kind) {
    case JsonNode::Kind::null:
      return "null";
    case JsonNode::Kind::boolean:
      return node.boolean ? "true" : "false";
    case JsonNode::Kind::number:
      return node.text;
    case JsonNode::Kind::text:
      return json_quoted(node.text);
    case JsonNode::Kind::list: {
      std::string joined;
      for (const JsonNode& item : node.items) joined += (joined.empty() ? "" : ", ") + json_text(item);
      return "[" + joined + "]";
    }
    case JsonNode::Kind::object: {
      std::string joined;
      for (const JsonMember& member : node.members)
        joined += (joined.empty() ? "" : ", ") + json_quoted(member.key) + ": " + json_text(member.value);
      return "{" + joined + "}";
    }
  }
  return "null";
}

}  // namespace terrace
