// What the fuzz targets share. A target takes any bytes as the text of a file: the parser under it either
// returns or throws an Error of a kind that input may cause. Everything else ends the program, and that is a
// finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include <terrace/base/error.h>

namespace terrace::fuzz {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Runs `body`; false when it threw an Error of one of these kinds. The error says what failed.
template <typename Body>
bool accepts(std::initializer_list<ErrorKind> kinds, Body body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    bool expected = false;
    for (const ErrorKind kind : kinds) expected |= error.kind() == kind;
    if (!expected) std::fprintf(stderr, "an error of another kind: %s\n", error.what());
    require(expected, "a bad input is an error of a kind that inputs cause");
    require(!error.parts().what_failed.empty(), "an error says what failed");
    return false;
  }
}

}  // namespace terrace::fuzz
