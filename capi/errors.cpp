#include <terrace/capi/errors.h>

#include <fmt/format.h>
#include <terrace_run.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include <terrace/capi/structs.h>
#include <terrace/offload/plan/budget_shortage.h>

namespace terrace::c {
namespace {

constexpr std::array kDoors = {Door::c, Door::python, Door::configuration};
static_assert(TERRACE_WORDS_CONFIGURATION + 1 == kDoors.size());
static_assert(static_cast<int>(ErrorCause::unknown_name) == TERRACE_CAUSE_UNKNOWN_NAME);

void give_texts(terrace_error& error) {
  const ErrorParts& parts = error.parts;
  for (size_t d = 0; d < kDoors.size(); ++d)
    error.texts[d] = {parts.what_failed.in(kDoors[d]), parts.subject.in(kDoors[d]), parts.reason,
                      parts.advice.in(kDoors[d])};
}

// Made before there can be a want of memory, and never freed.
terrace_error& out_of_memory() noexcept {
  static terrace_error& error = *new terrace_error;
  if (!error.text.empty()) return error;
  error.kind = TERRACE_CAPACITY;
  error.parts = {"cannot go on", "memory of the process", "the system has no more (std::bad_alloc)",
                 "lower the budgets, or end what else takes memory"};
  error.text = Error(ErrorKind::capacity, error.parts).in(Door::c);
  give_texts(error);
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
  auto made = std::make_unique<terrace_error>();
  made->kind = kind_of(kind);
  made->text = Error(kind, parts).in(Door::c);
  made->parts = parts;
  if (made->parts.subject.empty())
    made->parts.subject = kind == ErrorKind::peer ? "the other ranks" : subject;
  give_texts(*made);
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

ErrorKind error_kind(uint32_t kind, ErrorKind otherwise) {
  for (const ErrorKind one : {ErrorKind::config, ErrorKind::capacity, ErrorKind::io, ErrorKind::device,
                              ErrorKind::corrupt, ErrorKind::cancelled, ErrorKind::peer, ErrorKind::misuse}) {
    if (kind_of(one) == kind) return one;
  }
  return otherwise;
}

void throw_again(terrace_error* failure) {
  const Error error(error_kind(failure->kind, ErrorKind::misuse), failure->parts);
  terrace_error_free(failure);
  throw error;
}

void refuse(ErrorKind kind, Wording what_failed, Wording subject, Reason reason, Wording advice) {
  throw Error(kind, {std::move(what_failed), std::move(subject), std::move(reason), std::move(advice)});
}

void misuse(Wording what_failed, Wording subject, Reason reason, Wording advice) {
  refuse(ErrorKind::misuse, std::move(what_failed), std::move(subject), std::move(reason), std::move(advice));
}

void require_pointer(const void* pointer, const Subject& action, const Subject& name) {
  if (pointer == nullptr) misuse(action, name, "it is NULL", "give its address");
}

void require_list(const void* list, uint64_t count, const Subject& action, const Subject& name) {
  if (list == nullptr && count > 0)
    misuse(action, name, fmt::format("it is NULL, with a count of {}", count),
           "give its address, or a count of 0");
}

void require_enum(uint32_t value, uint32_t count, const Subject& action, const Subject& name) {
  if (value >= count)
    refuse(ErrorKind::config, action, name,
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
  terrace_error_get_as(error, TERRACE_WORDS_C, parts);
}

void terrace_error_get_as(const terrace_error* error, uint32_t words, terrace_error_parts* parts) {
  if (parts == nullptr || !terrace::c::is_size(parts->size)) return;
  static const terrace_error none = {.kind = 0, .parts = {}, .texts = {}, .text = {}};
  const terrace_error& from = error == nullptr ? none : *error;
  const auto& texts = from.texts[words < from.texts.size() ? words : uint32_t{TERRACE_WORDS_C}];
  terrace::c::give(parts, terrace_error_parts{.size = 0,
                                              .kind = from.kind,
                                              .what_failed = texts[0].c_str(),
                                              .subject = texts[1].c_str(),
                                              .reason = texts[2].c_str(),
                                              .advice = texts[3].c_str(),
                                              .least_bytes = from.least_bytes,
                                              .least_device_bytes = from.least_device_bytes,
                                              .least_host_bytes = from.least_host_bytes,
                                              .least_nvme_bytes = from.least_nvme_bytes});
}

uint32_t terrace_error_cause_of(const terrace_error* error) {
  return error == nullptr ? uint32_t{TERRACE_CAUSE_OTHER} : static_cast<uint32_t>(error->parts.cause);
}

void terrace_error_free(terrace_error* error) {
  if (error != &kOutOfMemory) delete error;
}
