#include <terrace/base/error.h>

#include <cstring>
#include <utility>

#include <terrace/base/text/shown_text.h>

namespace terrace {
namespace {

std::string compose(const ErrorParts& parts) {
  std::string text = shown_lines(parts.what_failed);
  if (!parts.subject.empty()) text += " \"" + shown_line(parts.subject) + "\"";
  if (!parts.reason.empty()) text += ": " + shown_message(parts.reason);
  if (!parts.advice.empty()) text += "\n  " + shown_lines(parts.advice);
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorParts parts)
    : std::runtime_error(compose(parts)), kind_(kind), parts_(std::move(parts)) {}

std::string system_reason(int error_number) {
  const char* name = strerrorname_np(error_number);
  const char* words = strerrordesc_np(error_number);
  if (words == nullptr) return "error " + std::to_string(error_number);
  return std::string(words) + " (" + (name != nullptr ? name : std::to_string(error_number)) + ")";
}

}  // namespace terrace
