// JsonText: the text of a configuration in the form that the JSON parser takes. It replaces comments with
// blanks and adds the commas that are missing between lines (Hjson, which DeepSpeed reads, allows that). It
// knows the line and the column of every offset.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/error.h>

namespace terrace {

class JsonText {
 public:
  // `name` stands for the document in origins; `first_line` is the line of the document at which the text
  // starts. Throws Error(config) for text that is not UTF-8, for a NUL byte and for brackets nested more than
  // `deepest` deep.
  JsonText(std::string_view text, std::string_view name, size_t first_line, size_t deepest);

  std::string_view text() const { return text_; }
  // Returns the place of an offset, "ds.json:14:7"; columns count characters. It is empty
  // if the document has no name.
  std::string at(size_t offset) const;

 private:
  void find_lines();
  void count_characters();
  size_t characters_before(size_t offset) const;
  void check_characters() const;
  void check_depth(size_t deepest) const;

  std::string text_;
  std::string_view name_;
  size_t first_line_;
  std::vector<size_t> line_starts_ = {0};
  std::vector<size_t> characters_;  // characters before each run of kRun bytes: a line may have any length
};

// Text that is no JSON, of which `what_failed` says the place and the reason.
class NotJson : public Error {
 public:
  NotJson(const std::string& origin, const std::string& reason, const std::string& advice);
  const std::string& origin() const { return origin_; }
  const std::string& reason() const { return reason_; }

 private:
  std::string origin_, reason_;
};

[[noreturn]] void throw_not_json(const std::string& origin, const std::string& reason,
                                 const std::string& advice);

}  // namespace terrace
