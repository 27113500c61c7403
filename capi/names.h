// Names: what a refusal speaks of, as it is called in C and in Python.
#pragma once

#include <string_view>

#include <terrace.h>
#include <terrace/base/option.h>
#include <terrace/base/wording.h>

namespace terrace::c {

// Words, an option or a call. Making and passing one costs nothing, so that a call may have it at hand for
// every check.
class Subject {
 public:
  constexpr Subject(const char* words) : names_{.cpp = words} {}
  constexpr Subject(std::string_view words) : names_{.cpp = words} {}
  Subject(const std::string& words) : names_{.cpp = words} {}
  constexpr Subject(Option option) : names_(names_of(option)) {}
  constexpr Subject(const Names& names) : names_(names) {}

  operator Wording() const {
    const bool is_text = names_.c.empty();
    return is_text ? Wording(names_.cpp) : Wording(names_);
  }

 private:
  Names names_;
};

// A function of the header, as `name` behind "terrace_". It does not compile where there is none.
#define TERRACE_CALL_AS(name, in_python)                                             \
  ::terrace::Names {                                                                 \
    .c = (static_cast<void>(&terrace_##name), "terrace_" #name), .python = in_python \
  }
#define TERRACE_CALL(name) TERRACE_CALL_AS(name, "Store." #name)
// A value of an enum of the header, and its word in Python.
#define TERRACE_VALUE(name, in_python)                         \
  ::terrace::Names {                                           \
    .c = (static_cast<void>(name), #name), .python = in_python \
  }

}  // namespace terrace::c
