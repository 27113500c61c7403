#include <terrace/runtime/config/json/json_document.h>

#include <fmt/format.h>
#include <json/json.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <memory>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_text.h>

namespace terrace {
namespace {

constexpr size_t kDeepest = 64;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

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
    throw_not_json(origin, fmt::format("{} is not a number", json_quoted(literal, 40)),
                   "write numbers as 16, 0.9 or 5e8, of a size that a double can hold");
  }
  return node;
}

JsonNode convert(const Json::Value& value, const JsonText& places) {
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

// What is written where the parser stopped, in words that say what JSON has in its place; empty where only
// the parser knows.
std::string what_is_written(std::string_view rest, bool wants_key) {
  if (rest.empty()) return "the text ends too early";
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\n,:]}"));
  if (word.starts_with('\'')) return "texts stand in double quotes, not in single ones";
  if (word.starts_with("/*")) return "a comment that does not end";
  if (word == "True" || word == "False" || word == "None")
    return fmt::format("{} is Python's; JSON writes true, false and null", word);
  if (word == "NaN" || word.ends_with("Infinity")) return fmt::format("{} is no number that JSON has", word);
  if (!std::isalpha(static_cast<unsigned char>(word.front())) && word.front() != '_') return "";
  const std::string shown = json_quoted(word, 40);
  return wants_key
             ? fmt::format("a key stands in double quotes: {}", shown)
             : fmt::format("{} is none of true, false and null, and texts stand in double quotes", shown);
}

// "* Line 1, Column 9\n  Duplicate key: 'a'\n..." in our words.
[[noreturn]] void report(const std::string& jsoncpp_message, const JsonText& places) {
  size_t line = 1;
  size_t column = 1;
  if (std::sscanf(jsoncpp_message.c_str(), "* Line %zu, Column %zu", &line, &column) != 2) line = column = 1;
  const size_t offset = places.offset_of(line, column);
  const size_t begin = jsoncpp_message.find('\n');
  std::string reason = begin == std::string::npos ? jsoncpp_message : jsoncpp_message.substr(begin + 1);
  reason = reason.substr(0, reason.find('\n'));
  reason.erase(0, reason.find_first_not_of(' '));
  constexpr std::string_view duplicate = "Duplicate key: '";
  if (reason.starts_with(duplicate) && reason.ends_with("'")) {
    const std::string key = reason.substr(duplicate.size(), reason.size() - duplicate.size() - 1);
    throw_not_json(places.at(offset), "duplicate key " + json_quoted(key, 80),
                   "a key may stand only once in a section: remove one of them");
  }
  const bool wants_key = reason.find("object member name") != std::string::npos;
  std::string written = what_is_written(places.text().substr(offset), wants_key);
  if (written.empty()) {
    const std::string quoted = json_quoted(reason, 200);
    written = quoted.substr(1, quoted.size() - 2);
  }
  throw_not_json(places.at(offset), "not valid JSON: " + written,
                 "the file is read as JSON with //, # and /* */ comments and trailing commas");
}

Json::CharReaderBuilder reader_settings() {
  Json::CharReaderBuilder builder;
  builder["collectComments"] = false;
  builder["allowComments"] = false;
  builder["allowTrailingCommas"] = true;
  builder["rejectDupKeys"] = true;
  builder["failIfExtra"] = true;
  builder["stackLimit"] = kDeepest + 2;  // never met: JsonText counts the brackets
  return builder;
}

void write_node(JsonWriter& json, const JsonNode& node) {
  switch (node.kind) {
    case JsonNode::Kind::null:
      json.value(nullptr);
      return;
    case JsonNode::Kind::boolean:
      json.value(node.boolean);
      return;
    case JsonNode::Kind::number:
      json.value(json_raw(node.text));
      return;
    case JsonNode::Kind::text:
      json.value(node.text);
      return;
    case JsonNode::Kind::list:
      json.begin_list();
      for (const JsonNode& item : node.items) write_node(json, item);
      json.end();
      return;
    case JsonNode::Kind::object:
      json.begin_object();
      for (const JsonMember& member : node.members) write_node(json.key(member.key), member.value);
      json.end();
      return;
  }
}

}  // namespace

JsonNode parse_json(std::string_view text, std::string_view name, size_t first_line) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const JsonText places(text, name, first_line, kDeepest);
  const std::string_view json = places.text();
  if (json.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw_not_json(places.at(0), "it is empty", "write at least {}");
  const std::unique_ptr<Json::CharReader> reader(reader_settings().newCharReader());
  Json::Value root;
  std::string message;
  if (!reader->parse(json.data(), json.data() + json.size(), &root, &message)) report(message, places);
  return convert(root, places);
}

const JsonNode* JsonNode::find(std::string_view key) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [key](const JsonMember& member) { return member.key == key; });
  return found == members.end() ? nullptr : &found->value;
}

std::optional<uint64_t> JsonNode::whole_number() const {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (kind != Kind::number || status != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string json_text(const JsonNode& node) {
  JsonWriter json;
  write_node(json, node);
  return json.take();
}

}  // namespace terrace
