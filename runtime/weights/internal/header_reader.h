// HeaderReader: walks the JSON of a safetensors header value by value and keeps nothing: a hundred megabytes
// of empty lists must not become gigabytes of tree. It takes exactly the JSON that a header may hold:
// objects, texts, and lists of whole numbers; offsets and sizes go through no double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::weights {

class HeaderReader {
 public:
  // Both outlive the reader; `file` is named in errors.
  HeaderReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  void begin_object();
  // Goes to the next member of the object and returns true, with its key; or leaves the object.
  bool next_member(std::string& key);
  void begin_list();
  // Goes to the next item of the list and returns true; or leaves the list.
  bool next_item();
  std::string text();
  uint64_t whole_number();
  // Only spaces may follow.
  void end();

  // Throws Error(corrupt) with the place at which the reader is.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  void skip_spaces();
  char peek();
  void expect(char c, const char* what);
  bool next(char closing);

  std::string_view text_;
  std::string_view file_;
  size_t at_ = 0;
  bool first_ = false;  // no member or item of the innermost object or list has been read
};

}  // namespace terrace::weights
