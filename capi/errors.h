// What becomes of failures: every exception ends here as a terrace_error, and none crosses into C.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace.h>
#include <terrace/base/error.h>
#include <terrace/capi/names.h>

struct terrace_error {
  uint32_t kind = TERRACE_INTERNAL;
  terrace::ErrorParts parts;
  // The parts in the words of C, of Python and of a configuration (terrace_words).
  std::array<std::array<std::string, 4>, 3> texts;
  std::string text;
  uint64_t least_bytes = 0, least_device_bytes = 0, least_host_bytes = 0, least_nvme_bytes = 0;
};

namespace terrace::c {

// The error of the exception that is being handled. Where there is no memory for one it is an error that all
// such failures share.
terrace_error* current_error() noexcept;
// A copy that the caller owns.
terrace_error* copy_error(const terrace_error& error) noexcept;

// The kind that C knows as `kind` (terrace_error_kind), or `otherwise` where that is a failure of the library
// itself.
ErrorKind error_kind(uint32_t kind, ErrorKind otherwise);

// Throws the failure of a call within a call, as an Error of its kind, and frees it.
[[noreturn]] void throw_again(terrace_error* failure);

// Runs a call of the C API: null, or its failure.
template <typename Action>
terrace_error* answer(Action action) noexcept {
  try {
    action();
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

[[noreturn]] void refuse(ErrorKind kind, Wording what_failed, Wording subject, Reason reason, Wording advice);
[[noreturn]] void misuse(Wording what_failed, Wording subject, Reason reason, Wording advice);

// Throws Error(misuse) for a null `pointer`: "cannot begin a step", "store".
void require_pointer(const void* pointer, const Subject& action, const Subject& name);
// The same for a list of `count`, which may be null where it is empty.
void require_list(const void* list, uint64_t count, const Subject& action, const Subject& name);
// Throws Error(config) for a number that is none of an enum's first `count`.
void require_enum(uint32_t value, uint32_t count, const Subject& action, const Subject& name);

}  // namespace terrace::c
