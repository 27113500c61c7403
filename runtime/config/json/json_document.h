// A JSON document as people write configuration files: //, # and /* */ comments, trailing commas, and no
// comma needed where a line ends (as in Hjson, which DeepSpeed reads). Every value knows its line and column.
// Duplicate keys, broken UTF-8 and half-written numbers are errors, never a guess.
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
  std::string text;                 // of a text; of a number its literal as written
  std::vector<JsonNode> items;      // of a list
  std::vector<JsonMember> members;  // of an object, in the order of the file
  std::string origin;               // of the value: "ds.json:14:9", or the flag that gave it

  bool is(Kind other) const { return kind == other; }
  // The member of an object; null where there is none.
  const JsonNode* find(std::string_view key) const;
  // A number that is written as a whole one, without sign, and fits; nothing for any other value.
  std::optional<uint64_t> whole_number() const;
};

struct JsonMember {
  std::string key;
  std::string origin;  // of the key: "ds.json:14:7"
  JsonNode value;
};

// `name` stands for the document in origins and messages. Throws Error(config), naming line and column,
// unless the text is one JSON value. `first_line`: of the text in its document.
JsonNode parse_json(std::string_view text, std::string_view name, size_t first_line = 1);

// A value as one line of JSON.
std::string json_text(const JsonNode& node);

}  // namespace terrace
