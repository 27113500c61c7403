// JsonCursor reads a JSON text once, from front to back, and keeps nothing. It suits files with a million
// values, whose tree would take a hundred times the memory. Nesting is bounded; every error names the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>

namespace terrace {

// The parts of the Error that a cursor throws: `what_failed` on the given file, "`place` N: <reason>",
// `advice`.
struct JsonCursorErrors {
  ErrorKind kind = ErrorKind::config;
  const char* what_failed = "";
  const char* place = "byte";
  const char* advice = "";
  uint64_t bytes_before = 0;  // bytes of the file before the text; N counts from the file's first byte
  // Where it is set it throws instead, of the offset in the text and the reason.
  const FunctionRef<void(size_t at, const std::string& reason)>* raise = nullptr;
};

class JsonCursor {
 public:
  // `name` stands for the file in messages. The text and the name outlive the cursor. Every function here
  // throws as `errors` says when the text does not hold the value that it reads; the constructor throws when
  // the text is not UTF-8.
  JsonCursor(std::string_view text, std::string_view name, const JsonCursorErrors& errors);

  // Returns the first character of the next value: '{', '[', '"', 't', ...
  char next();
  // Takes the next character that is no space if it is this one.
  bool take(char c);
  // Bytes of the text that were taken, with the spaces before what next() returned.
  size_t offset() const { return at_; }
  // Calls `member` with each key; it must read the value.
  void object(FunctionRef<void(std::string& key)> member);
  // Calls `item` before each item; `item` must read it.
  void list(FunctionRef<void()> item);
  std::string text();
  uint64_t whole_number(uint64_t largest);
  bool boolean();
  // Takes the next value if it is null.
  bool take_null();
  // Steps over a value of any kind and returns its text.
  std::string_view skip();
  // Throws unless only white space follows.
  void end();

  [[noreturn]] void fail(const std::string& reason) const;

 private:
  void space();
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
