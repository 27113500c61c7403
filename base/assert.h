// TERRACE_ASSERT: a programmer's mistake ends the program with a message that holds the values. It is always
// on.
#pragma once

#include <string>

namespace terrace {

// Prints the condition, the place and the message to stderr and aborts.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& message);

}  // namespace terrace

// `message` is any expression that makes a std::string; it is evaluated only when the condition is false.
#define TERRACE_ASSERT(condition, message)                                    \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::terrace::assertion_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
