#include <terrace/capi/limits.h>

#include <fmt/format.h>

#include <string>

#include <terrace/capi/errors.h>

namespace terrace::c {

void require_at_most(uint64_t value, uint64_t most, const Subject& action, const Subject& name) {
  if (value > most)
    refuse(ErrorKind::config, action, name, fmt::format("it is {}", value),
           fmt::format("set {} at most", most));
}

void require_bytes(uint64_t bytes, const Subject& action, const Subject& name) {
  require_at_most(bytes, kMostBytes, action, name);
}

void require_zero(uint32_t value, const Subject& action, const Subject& name) {
  if (value != 0)
    refuse(ErrorKind::config, action, name, fmt::format("it is {}", value),
           "leave it at 0: it has no meaning yet");
}

}  // namespace terrace::c
