// Error: the one exception of Terrace. It reports a fault of the environment or of an input, in four parts. A
// mistake inside of Terrace is never an Error: see assert.h.
#pragma once

#include <stdexcept>
#include <string>

namespace terrace {

enum class ErrorKind {
  config,     // a key, flag or value that cannot be used
  capacity,   // a budget, drive or limit that is too small
  io,         // a file or drive operation failed
  device,     // the accelerator failed
  corrupt,    // bytes on a drive differ from those written
  cancelled,  // the user or a signal asked to stop
  misuse,     // a call out of order, or on something that is not open
  peer,       // another rank failed, left, or does something else
};

// The four parts of every message. `reason` may be empty when the operation speaks for itself.
struct ErrorParts {
  std::string what_failed;  // "cannot open the tier file"
  std::string subject;      // the path, offset, tensor or key concerned
  std::string reason;       // the system's words: strerror, a limit, a parser's message
  std::string advice;       // what to do about it, in options of the library: "raise OffloadOptions::..."
};

// what() reads "<what_failed> "<subject>": <reason>\n  <advice>", with everything that a terminal would obey
// escaped (shown_text.h); parts() holds the parts as they were given. Thread-safe to copy and read.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorParts parts);

  ErrorKind kind() const { return kind_; }
  const ErrorParts& parts() const { return parts_; }

 private:
  ErrorKind kind_;
  ErrorParts parts_;
};

// strerror without its shared buffer: "No space left on device (ENOSPC)".
std::string system_reason(int error_number);

}  // namespace terrace
