// JsonText: the text of a configuration in the form that the JSON parser takes. It replaces comments with
// blanks and adds the commas that are missing between lines (Hjson, which DeepSpeed reads, allows that). It
// knows the line and the column of every offset.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class JsonText {
 public:
  // `name` stands for the document in origins; `first_line` is the line of the document at which the text
  // starts. Throws Error(config) for text that is not UTF-8, for a NUL byte and for brackets nested more than
  // `deepest` deep.
  JsonText(std::string_view text, std::string_view name, size_t first_line, size_t deepest);

  std::string_view text() const { return text_; }
  // Returns the place of an offset, "ds.json:14:7"; columns count characters.
  std::string at(size_t offset) const;
  // Returns the place of the key of the value at `value_offset`.
  std::string of_key_before(size_t value_offset) const;
  // Returns the offset of a line and a column in bytes, both counted from 1 as the parser does.
  size_t offset_of(size_t line, size_t column) const;

 private:
  void find_lines();
  void count_characters();
  size_t characters_before(size_t offset) const;
  void find_keys();
  void check_characters() const;
  void check_depth(size_t deepest) const;

  std::string text_;
  std::string_view name_;
  size_t first_line_;
  std::vector<size_t> line_starts_ = {0};
  std::vector<size_t> keys_;
  std::vector<size_t> characters_;  // characters before each run of kRun bytes: a line may have any length
};

[[noreturn]] void throw_not_json(const std::string& origin, const std::string& reason,
                                 const std::string& advice);

}  // namespace terrace
