#include <terrace/base/assert.h>

#include <cstdio>
#include <cstdlib>

namespace terrace {

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "terrace: assertion failed: %s\n  at %s:%d\n  %s\n", condition, file, line,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace terrace
