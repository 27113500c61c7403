// JsonCursor: reads a JSON text once, from front to back, and keeps nothing: for files with a million values,
// of which a tree would take a hundred times the memory. Nesting is bounded; every error names the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>

namespace terrace {

// What a cursor throws: `what_failed` on the file that it was given, "`place` N: <reason>", `advice`.
struct JsonCursorErrors {
  ErrorKind kind = ErrorKind::config;
  const char* what_failed = "";
  const char* place = "byte";
  const char* advice = "";
  uint64_t bytes_before = 0;  // of the file, before the text; N counts from the first of them
};

class JsonCursor {
 public:
  // `name` stands for the file in messages; text and name outlive the cursor. Throws as `errors` say when the
  // text is not UTF-8, as every function here does when the text is not what it asks for.
  JsonCursor(std::string_view text, std::string_view name, const JsonCursorErrors& errors);

  // The first character of the value that comes next: '{', '[', '"', 't', ...
  char next();
  // Calls `member` with each key; it must read the value.
  void object(FunctionRef<void(std::string& key)> member);
  // Calls `item` before each item; it must read it.
  void list(FunctionRef<void()> item);
  std::string text();
  uint64_t whole_number(uint64_t largest);
  bool boolean();
  // Takes null when that comes next.
  bool take_null();
  // Steps over a value of any kind and returns its text.
  std::string_view skip();
  // Nothing but white space must follow.
  void end();

  [[noreturn]] void fail(const std::string& reason) const;

 private:
  void space();
  bool take(char c);
  void expect(char c, const char* what);
  void take_word(std::string_view word);
  uint32_t hex4();
  void escape(std::string& out);
  void skip_string();

  std::string_view text_;
  std::string_view name_;
  JsonCursorErrors errors_;
  size_t at_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace terrace
