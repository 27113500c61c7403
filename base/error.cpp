#include <terrace/base/error.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <terrace/base/text/shown_text.h>

namespace terrace {
namespace {

std::string compose(const ErrorParts& parts, Door door) {
  std::string text = shown_lines(parts.what_failed.in(door));
  const std::string subject = parts.subject.in(door);
  const char* const quote = subject.find('"') == std::string::npos ? "\"" : "";
  if (!subject.empty()) text += std::string(" ") + quote + shown_line(subject) + quote;
  if (!parts.reason.empty()) text += ": " + shown_message(parts.reason);
  if (!parts.advice.empty()) text += "\n  " + shown_lines(parts.advice.in(door));
  return text;
}

ErrorParts with_advice_on_limit(ErrorParts parts) {
  if (std::string advice = advice_on_limit(parts.error_number); !advice.empty())
    parts.advice = std::move(advice);
  return parts;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorParts parts) : Error(with_advice_on_limit(std::move(parts)), kind) {}

Error::Error(ErrorParts parts, ErrorKind kind)
    : std::runtime_error(compose(parts, Door::cpp)), kind_(kind), parts_(std::move(parts)) {}

std::string Error::in(Door door) const {
  return compose(parts_, door);
}

std::string Error::without_advice() const {
  ErrorParts parts = parts_;
  parts.advice = {};
  return compose(parts, Door::cpp);
}

std::string advice_on_limit(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "raise the number of files that a process may have open (`ulimit -n`)";
    case ENFILE:
      return "raise the number of files that the whole system may have open (`sysctl fs.file-max`), or end "
             "programs that have many";
    case EFBIG:
      return "raise the largest size of a file (`ulimit -f`), or name a place on a file system that has "
             "larger ones";
  }
  return "";
}

bool is_absence(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR;
}

bool is_system_refusal(const Error& failure) {
  const int number = failure.parts().error_number;
  return number != 0 && !is_absence(number);
}

bool is_damage(const Error& failure) {
  const bool is_of_state = failure.kind() == ErrorKind::corrupt || failure.kind() == ErrorKind::io;
  return is_of_state && !is_system_refusal(failure);
}

// A drive of nvme says ENODATA of a sector that it cannot read, and file systems say the last two of their
// own blocks.
bool is_drive_failure(int error_number) {
  return error_number == EIO || error_number == ENODATA || error_number == EBADMSG || error_number == EUCLEAN;
}

Reason operator+(const std::string& before, const Reason& reason) {
  return {before + reason.text, reason.error_number};
}

Reason operator+(const Reason& reason, const std::string& behind) {
  return {reason.text + behind, reason.error_number};
}

Reason system_reason(int error_number) {
  const char* name = strerrorname_np(error_number);
  const char* words = strerrordesc_np(error_number);
  if (words == nullptr) return {"error " + std::to_string(error_number), error_number};
  return {std::string(words) + " (" + (name != nullptr ? name : std::to_string(error_number)) + ")",
          error_number};
}

}  // namespace terrace
