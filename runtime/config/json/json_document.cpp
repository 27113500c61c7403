#include <terrace/runtime/config/json/json_document.h>

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/text/json_cursor.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_text.h>

namespace terrace {
namespace {

constexpr size_t kDeepest = 64;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

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

class DocumentReader {
 public:
  explicit DocumentReader(const JsonText& places) : places_(places) {}

  JsonNode read() {
    JsonNode root = value();
    cursor_.end();
    return root;
  }

  // Throws what the cursor has found wrong.
  void operator()(size_t at, const std::string& reason) const {
    const std::string written = what_is_written(places_.text().substr(at), wants_key_);
    throw_not_json(places_.at(at), "not valid JSON: " + (written.empty() ? reason : written),
                   "the file is read as JSON with //, # and /* */ comments and trailing commas");
  }

 private:
  using Kind = JsonNode::Kind;

  JsonNode value() {
    const char first = cursor_.next();
    const std::string origin = places_.at(cursor_.offset());
    JsonNode node;
    if (first == '{') {
      object(node);
    } else if (first == '[') {
      list(node);
    } else if (first == '"') {
      node.kind = Kind::text;
      node.text = cursor_.text();
    } else if (first == 't' || first == 'f') {
      node.kind = Kind::boolean;
      node.boolean = cursor_.boolean();
    } else if (first == '-' || first == '+' || first == '.' || (first >= '0' && first <= '9')) {
      node = number_node(cursor_.skip(), origin);
    } else if (!cursor_.take_null()) {
      cursor_.fail("a value is expected here");
    }
    node.origin = origin;
    return node;
  }

  void object(JsonNode& node) {
    node.kind = Kind::object;
    std::set<std::string> keys;
    cursor_.take('{');
    while (cursor_.next() != '}') {
      const std::string origin = places_.at(cursor_.offset());
      wants_key_ = true;
      std::string key = cursor_.text();
      wants_key_ = false;
      if (!cursor_.take(':')) cursor_.fail("a colon is expected here");
      if (!keys.insert(key).second)
        throw_not_json(origin, "duplicate key " + json_quoted(key, 80),
                       "a key may stand only once in a section: remove one of them");
      node.members.push_back({std::move(key), origin, value()});
      if (!cursor_.take(',')) break;
    }
    if (!cursor_.take('}')) cursor_.fail("a comma or the closing bracket is expected here");
  }

  void list(JsonNode& node) {
    node.kind = Kind::list;
    cursor_.take('[');
    while (cursor_.next() != ']') {
      node.items.push_back(value());
      if (!cursor_.take(',')) break;
    }
    if (!cursor_.take(']')) cursor_.fail("a comma or the closing bracket is expected here");
  }

  const JsonText& places_;
  bool wants_key_ = false;
  const FunctionRef<void(size_t, const std::string&)> raise_{*this};
  JsonCursor cursor_{places_.text(), "", {.raise = &raise_}};
};

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
  if (places.text().find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw_not_json(places.at(0), "it is empty", "write at least {}");
  return DocumentReader(places).read();
}

const JsonNode* JsonNode::find(std::string_view key) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [key](const JsonMember& member) { return member.key == key; });
  return found == members.end() ? nullptr : &found->value;
}

std::optional<uint64_t> JsonNode::whole_number() const {
  return kind == Kind::number ? number_of_digits(text) : std::nullopt;
}

std::string json_text(const JsonNode& node) {
  JsonWriter json;
  write_node(json, node);
  return json.take();
}

}  // namespace terrace
