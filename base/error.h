// Error: the one exception of Terrace. It reports a fault of the environment or of an input, in four parts. A
// mistake inside of Terrace is never an Error: see assert.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <terrace/base/wording.h>

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

// What a program may do something about by itself, where the kind does not tell it from other failures.
enum class ErrorCause : uint8_t {
  other,
  no_store,       // the store is closed, or was never there
  store_busy,     // another call on the store is under way
  folder_in_use,  // another store or job has the folder
  no_path,        // something is to be on nvme, and no path is given
  unknown_name,   // a name is none of those that the advice lists
};

// Why something failed, in words, with the system's number where it was the system that refused. What is put
// before or behind the words leaves the number.
struct Reason {
  Reason() = default;
  Reason(std::string words, int number = 0) : text(std::move(words)), error_number(number) {}
  Reason(const char* words) : text(words) {}
  operator std::string() const { return text; }

  std::string text;
  int error_number = 0;  // an errno; 0: not of the system
};
Reason operator+(const std::string& before, const Reason& reason);
Reason operator+(const Reason& reason, const std::string& behind);

// The four parts of every message. `reason` may be empty when the operation speaks for itself. An option is
// named by its enum, and never by a word: "raise " + Option::host_budget.
struct ErrorParts {
  ErrorParts() = default;
  ErrorParts(Wording what, Wording on_what, Reason why, Wording what_to_do,
             ErrorCause because = ErrorCause::other)
      : what_failed(std::move(what)),
        subject(std::move(on_what)),
        reason(std::move(why.text)),
        advice(std::move(what_to_do)),
        error_number(why.error_number),
        cause(because) {}

  Wording what_failed;   // "cannot open the tier file"
  Wording subject;       // the path, offset, tensor, option or key concerned
  std::string reason;    // the system's words: strerror, a limit, a parser's message
  Wording advice;        // what to do about it
  int error_number = 0;  // of `reason`
  ErrorCause cause = ErrorCause::other;

  Reason why() const { return {reason, error_number}; }  // for another message of the same failure
};

// What to do about a limit of the system, whatever ran into it: too many open files, too large a file. Empty
// for the numbers that say nothing of the kind; the advice of who failed is better then.
std::string advice_on_limit(int error_number);

// Where the reason is a limit of the system, the advice is advice_on_limit(), whatever was given. what()
// reads "<what_failed> "<subject>": <reason>\n  <advice>" in the words of C++, and in() in those of another
// door, without the quotes where the subject has some of its own, and with everything that a terminal would
// obey escaped (shown_text.h); parts() holds the parts as they were given. Thread-safe to copy and read.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorParts parts);

  ErrorKind kind() const { return kind_; }
  const ErrorParts& parts() const { return parts_; }
  std::string in(Door door) const;
  // The first three parts, in the words of C++: for the reason of another error, which has an advice of its
  // own.
  std::string without_advice() const;

 private:
  Error(ErrorParts parts, ErrorKind kind);
  ErrorKind kind_;
  ErrorParts parts_;
};

// Whether a call that looked for a file says with this errno that there is none. Any other says nothing of
// the kind: the file may be there and whole.
bool is_absence(int error_number);
// Whether the system refused, and not because something is not there: what was to be read may be whole.
bool is_system_refusal(const Error& failure);
// Whether a saved state that cannot be read is damaged or lost: its bytes are not as they were written, or it
// is not there. A refusal of the system says nothing about it.
bool is_damage(const Error& failure);
// Whether a drive did not read or write what it was asked for (EIO and its like). What cannot be read now may
// be whole: another state may be taken in its place, and nothing of it may be removed.
bool is_drive_failure(int error_number);

// strerror without its shared buffer: "No space left on device (ENOSPC)".
Reason system_reason(int error_number);

}  // namespace terrace
