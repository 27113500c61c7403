// JsonText: the text of a configuration as the JSON parser takes it. Comments are blanks, and a comma that is
// missing between two lines is there, as Hjson allows it, which DeepSpeed reads. It knows the line and the
// column of every offset.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class JsonText {
 public:
  // `name` stands for the document in origins. Throws Error(config) for text that is not UTF-8, for a NUL
  // byte and for brackets nested more than `deepest` deep. `first_line`: of the text in its document.
  JsonText(std::string_view text, std::string_view name, size_t first_line, size_t deepest);

  std::string_view text() const { return text_; }
  // "ds.json:14:7"; columns count characters.
  std::string at(size_t offset) const;
  // The place of the key of the value at `value_offset`.
  std::string of_key_before(size_t value_offset) const;
  // Of a line and a column in bytes, both from 1 on: as the parser counts them.
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
  std::vector<size_t> characters_;  // before each run of kRun bytes, so that a line may have any length
};

[[noreturn]] void throw_not_json(const std::string& origin, const std::string& reason,
                                 const std::string& advice);

}  // namespace terrace
