// The schema: every known configuration key, in one table. The parser, the suggestions in messages and
// docs/config.md all come from it; no other file may name a key that is not in it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

enum class ValueType : uint8_t {
  boolean,
  integer,       // also 5e8 or 0.9e6 when that is a whole number
  number,        //
  number_list,   // at least one number
  rates,         // a number, or a list of one per parameter group
  text,          //
  text_list,     // at least one text; a single text stands for a list of one
  path_list,     // as text_list; an empty text is as good as none
  choice,        // one of `allowed`, in any case
  size,          // a number of bytes, or "256MiB"
  any,           //
  section,       // an object whose keys are in the table
  section_list,  // a list of objects whose keys are in the table
  open_section,  // an object whose keys are not checked
};

enum class KeyEffect : uint8_t {
  honoured,        // has the effect that it has in DeepSpeed, or that its note describes
  mapped,          // stands for another key; the note says which
  without_effect,  // accepted, and listed in the warning
  refused,         // an error, except for the values in `allowed`
};
std::string_view name_of(KeyEffect effect);

struct KeyLimits {
  // The accepted values of choices and refused keys, separated by '|'. A refused open section with "enabled:
  // false" here is accepted while nothing in it is enabled.
  std::string_view allowed = "";
  double minimum = 0;  // the bound of numbers, of integers, and of the members of lists
  double maximum = std::numeric_limits<double>::max();
  std::string_view instead = "";     // choices: "theirs=ours|...", for values that other programs have
  bool boolean_texts = false;        // "true" and "false" as texts are accepted
  std::string_view stands_for = "";  // another key, with its section, that takes the value
  bool warns_if_enabled = false;     // sections for Python alone: "enabled": true gets a warning of its own
  bool divides_model = false;        // open sections: a degree of parallelism above 1 is refused
  bool has_new_name = false;  // a name that DeepSpeed itself has given up; a reader is told the new one
};

struct SchemaKey {
  std::string_view section;  // "" at the top, "zero_optimization.offload_param"
  std::string_view key;
  ValueType type;
  std::string_view default_text;  // as in the documentation; "" if there is none
  KeyEffect effect;
  std::string_view note;  // its effect here, or why it has none; one sentence
  KeyLimits limits = {};

  std::string path() const;  // "zero_optimization.offload_param.device"
};

// Returns the whole table, section by section.
std::span<const SchemaKey> schema();
// True if a row stands for other rows or for an object, rather than for one value.
bool has_subkeys(const SchemaKey& row);
const SchemaKey* find_key(std::string_view section, std::string_view key);
const SchemaKey* find_path(std::string_view path);

// Returns the values that a key may have, for messages and documentation: "a whole number from 0 to 3", "one
// of none, cpu, nvme".
std::string expected_values(const SchemaKey& row);

// Returns the same, and of refused keys the values that are not: "only false", "not accepted".
std::string accepted_values(const SchemaKey& row);

// Returns "zero_optimization", or "the top level".
std::string section_name(std::string_view section);

}  // namespace terrace
