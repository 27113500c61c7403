#include <terrace/capi/errors.h>

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include <terrace/capi/option_words.h>
#include <terrace/capi/structs.h>
#include <terrace/offload/plan/budget_shortage.h>

namespace terrace::c {
namespace {

// Made before there can be a want of memory, and never freed.
terrace_error& out_of_memory() noexcept {
  static terrace_error& error = *new terrace_error;
  if (!error.text.empty()) return error;
  error.kind = TERRACE_CAPACITY;
  error.parts = {"cannot go on", "memory of the process", "the system has no more (std::bad_alloc)",
                 "lower the budgets, or end what else takes memory"};
  error.text = "cannot go on \"" + error.parts[1] + "\": " + error.parts[2] + "\n  " + error.parts[3];
  return error;
}
const terrace_error& kOutOfMemory = out_of_memory();

uint32_t kind_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::config:
      return TERRACE_CONFIG;
    case ErrorKind::capacity:
      return TERRACE_CAPACITY;
    case ErrorKind::io:
      return TERRACE_IO;
    case ErrorKind::device:
      return TERRACE_DEVICE_FAILED;
    case ErrorKind::corrupt:
      return TERRACE_CORRUPT;
    case ErrorKind::cancelled:
      return TERRACE_CANCELLED;
    case ErrorKind::peer:
      return TERRACE_PEER;
    case ErrorKind::misuse:
      return TERRACE_MISUSE;
  }
  return TERRACE_INTERNAL;
}

// The text is the library's; the parts name a subject always, for programs that show them one by one.
std::unique_ptr<terrace_error> made_of(ErrorKind kind, const ErrorParts& parts,
                                       std::string_view subject = "the store") {
  ErrorParts words = parts;
  words.reason = in_words_of_c(words.reason);
  words.advice = in_words_of_c(words.advice);
  auto made = std::make_unique<terrace_error>();
  made->kind = kind_of(kind);
  made->text = Error(kind, words).what();
  if (words.subject.empty()) words.subject = kind == ErrorKind::peer ? "the other ranks" : subject;
  made->parts = {std::move(words.what_failed), std::move(words.subject), std::move(words.reason),
                 std::move(words.advice)};
  return made;
}

std::unique_ptr<terrace_error> made_of(const ShortageError& error) {
  const std::string tier = error.tiers().empty() ? std::string() : error.tiers().front().tier;
  auto made = made_of(error.kind(), error.parts(), fmt::format("the {} budget", tier));
  for (const TierShortage& shortage : error.tiers()) {
    if (made->least_bytes == 0) made->least_bytes = shortage.needed_bytes;
    (shortage.tier == "device" ? made->least_device_bytes
     : shortage.tier == "host" ? made->least_host_bytes
                               : made->least_nvme_bytes) = shortage.needed_bytes;
  }
  return made;
}

std::unique_ptr<terrace_error> make_current() {
  try {
    throw;
  } catch (const ShortageError& error) {
    return made_of(error);
  } catch (const Error& error) {
    return made_of(error.kind(), error.parts());
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const std::system_error& error) {
    return made_of(ErrorKind::io,
                   {"an operation of the system failed", "it", error.what(), "see what the system says"});
  } catch (const std::exception& error) {
    auto made = made_of(ErrorKind::misuse, {"a call failed in a way that it has no name for", "the library",
                                            error.what(), "report it with the calls before it"});
    made->kind = TERRACE_INTERNAL;
    return made;
  } catch (...) {
    auto made =
        made_of(ErrorKind::misuse, {"a call failed in a way that it has no name for", "the library",
                                    "what was thrown is no exception of the standard library", "report it"});
    made->kind = TERRACE_INTERNAL;
    return made;
  }
}

}  // namespace

terrace_error* current_error() noexcept {
  try {
    if (auto made = make_current()) return made.release();
  } catch (...) {
    // There is no memory for the error itself.
  }
  return &out_of_memory();
}

terrace_error* copy_error(const terrace_error& error) noexcept {
  if (&error == &kOutOfMemory) return &out_of_memory();
  try {
    return std::make_unique<terrace_error>(error).release();
  } catch (...) {
    return &out_of_memory();
  }
}

void throw_again(terrace_error* failure) {
  ErrorKind kind = ErrorKind::misuse;
  for (const ErrorKind one : {ErrorKind::config, ErrorKind::capacity, ErrorKind::io, ErrorKind::device,
                              ErrorKind::corrupt, ErrorKind::cancelled}) {
    if (kind_of(one) == failure->kind) kind = one;
  }
  const auto& [what_failed, subject, reason, advice] = failure->parts;
  const Error error(kind, {what_failed, subject, reason, advice});
  terrace_error_free(failure);
  throw error;
}

void refuse(ErrorKind kind, std::string what_failed, std::string subject, std::string reason,
            std::string advice) {
  throw Error(kind, {std::move(what_failed), std::move(subject), std::move(reason), std::move(advice)});
}

void misuse(std::string what_failed, std::string subject, std::string reason, std::string advice) {
  refuse(ErrorKind::misuse, std::move(what_failed), std::move(subject), std::move(reason), std::move(advice));
}

void require_pointer(const void* pointer, std::string_view action, std::string_view name) {
  if (pointer == nullptr) misuse(std::string(action), std::string(name), "it is NULL", "give its address");
}

void require_list(const void* list, uint64_t count, std::string_view action, std::string_view name) {
  if (list == nullptr && count > 0)
    misuse(std::string(action), std::string(name), fmt::format("it is NULL, with a count of {}", count),
           "give its address, or a count of 0");
}

void require_enum(uint32_t value, uint32_t count, std::string_view action, std::string_view name) {
  if (value >= count)
    refuse(ErrorKind::config, std::string(action), std::string(name),
           fmt::format("{} is none of its values, which end with {}", value, count - 1),
           "set one of those that terrace.h names");
}

}  // namespace terrace::c

using terrace::c::kOutOfMemory;

uint32_t terrace_error_kind_of(const terrace_error* error) {
  return error == nullptr ? 0 : error->kind;
}

const char* terrace_error_text(const terrace_error* error) {
  return error == nullptr ? "" : error->text.c_str();
}

void terrace_error_get(const terrace_error* error, terrace_error_parts* parts) {
  if (parts == nullptr || !terrace::c::is_size(parts->size)) return;
  static const terrace_error none = {.kind = 0, .parts = {}, .text = {}};
  const terrace_error& from = error == nullptr ? none : *error;
  terrace::c::give(parts, terrace_error_parts{.size = 0,
                                              .kind = from.kind,
                                              .what_failed = from.parts[0].c_str(),
                                              .subject = from.parts[1].c_str(),
                                              .reason = from.parts[2].c_str(),
                                              .advice = from.parts[3].c_str(),
                                              .least_bytes = from.least_bytes,
                                              .least_device_bytes = from.least_device_bytes,
                                              .least_host_bytes = from.least_host_bytes,
                                              .least_nvme_bytes = from.least_nvme_bytes});
}

void terrace_error_free(terrace_error* error) {
  if (error != &kOutOfMemory) delete error;
}
