// A JSON document as people write configuration files: comments start with // or # or stand in /* */,
// trailing commas are allowed, and no comma is needed where a line ends (as in Hjson, which DeepSpeed reads).
// Every value knows its line and column. Duplicate keys, broken UTF-8 and half-written numbers are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct JsonMember;

struct JsonNode {
  enum class Kind : uint8_t { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text;                 // a text's characters, or a number's literal as written
  std::vector<JsonNode> items;      // a list's items
  std::vector<JsonMember> members;  // an object's members, in the order of the file
  std::string origin;               // where the value is from: "ds.json:14:9", or the flag that gave it

  bool is(Kind other) const { return kind == other; }
  // Returns the member of an object; null if there is none.
  const JsonNode* find(std::string_view key) const;
  // Returns the value of a number that is written whole and without a sign and fits; nothing for any other
  // value.
  std::optional<uint64_t> whole_number() const;
};

struct JsonMember {
  std::string key;
  std::string origin;  // where the key is: "ds.json:14:7"
  JsonNode value;
};

// `name` stands for the document in origins and messages, which without one have no places; `first_line` is
// the line of the document at which the text starts. Throws Error(config), naming line and column, unless the
// text is one JSON value.
JsonNode parse_json(std::string_view text, std::string_view name, size_t first_line = 1);

// Returns a value as one line of JSON.
std::string json_text(const JsonNode& node);

}  // namespace terrace
