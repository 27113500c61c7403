// Which engines exist, whether they work here, and how one is made.
#include <terrace/aio/engine.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include <terrace/aio/engines/libaio_transport.h>
#include <terrace/aio/engines/queued_engine.h>
#include <terrace/aio/engines/thread_transport.h>
#include <terrace/aio/engines/transport.h>
#include <terrace/aio/engines/uring_transport.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

struct NamedKind {
  EngineKind kind;
  std::string_view name;
};
constexpr std::array<NamedKind, 3> kKinds = {{
    {EngineKind::io_uring, "io_uring"},
    {EngineKind::libaio, "libaio"},
    {EngineKind::threads, "threads"},
}};
constexpr std::array kPreference = {EngineKind::io_uring, EngineKind::libaio, EngineKind::threads};

// Moves one byte out and back; empty when that works.
Reason use_once(Transport& transport) {
  const int fd = memfd_create("terrace-probe", MFD_CLOEXEC);
  if (fd < 0) return "memfd_create: " + system_reason(errno);
  std::byte byte{42};
  Reason reason;
  for (const OpKind kind : {OpKind::write, OpKind::read}) {
    const Piece piece{kind, fd, 0, &byte, 1, 0};
    PieceResult result{};
    transport.start({&piece, 1});
    transport.reap({&result, 1}, true);
    if (result.result == 1) continue;
    const int error = static_cast<int>(-result.result);
    reason = std::string(kind == OpKind::read ? "a read" : "a write") + " of one byte: " +
             (error == 0 ? Reason("nothing was moved")
                         : system_reason(is_engine_stop(error) ? error - kEngineStopped : error));
    break;
  }
  close(fd);
  return reason;
}

// Null with the reason in `words`.
std::unique_ptr<Transport> make_transport_of_kind(const EngineOptions& options, Reason& words) {
  switch (options.kind) {
    case EngineKind::io_uring:
      return make_uring_transport(options.queue_depth, words);
    case EngineKind::libaio:
      return make_libaio_transport(options.queue_depth, words);
    case EngineKind::threads:
      return std::make_unique<ThreadTransport>(options.queue_depth, options.thread_count);
  }
  words = "there is no such kind";
  return nullptr;
}

}  // namespace

std::string_view name_of(EngineKind kind) {
  for (const NamedKind& named : kKinds) {
    if (named.kind == kind) return named.name;
  }
  return "unknown";
}

std::span<const EngineKind> engine_kinds() {
  return kPreference;
}

std::optional<EngineKind> engine_kind_from_name(std::string_view name) {
  for (const NamedKind& named : kKinds) {
    if (named.name == name) return named.kind;
  }
  return std::nullopt;
}

std::unique_ptr<Transport> make_transport(const EngineOptions& options) {
  Reason words;
  std::unique_ptr<Transport> transport = make_transport_of_kind(options, words);
  if (transport == nullptr) {
    throw Error(ErrorKind::io, {"cannot create the I/O engine", std::string(name_of(options.kind)), words,
                                "use another engine: \"threads\" works wherever files do"});
  }
  return transport;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  check_options(options);
  return make_engine_over(make_transport(options), options);
}

ProbeResult probe_engine(EngineKind kind) {
  try {
    Reason words;
    const std::unique_ptr<Transport> transport =
        make_transport_of_kind({.kind = kind, .queue_depth = 1, .thread_count = 1}, words);
    if (transport == nullptr) return {false, words};
    const Reason reason = use_once(*transport);
    return {reason.text.empty(), reason};
  } catch (const Error& error) {
    return {false, error.parts().what_failed.in(Door::cpp) + ": " + error.parts().why()};
  }
}

EngineChoice choose_engine(std::optional<EngineKind> wanted) {
  Reason refusals;
  for (const EngineKind candidate : engine_kinds()) {
    if (wanted.has_value() && *wanted != candidate) continue;
    const ProbeResult probe = probe_engine(candidate);
    const std::string name(name_of(candidate));
    if (probe.works) {
      if (wanted.has_value()) return {candidate, "I/O engine " + name + ", as it was asked for"};
      return {candidate,
              "I/O engine " + name +
                  (refusals.text.empty() ? ", the fastest one, works here" : "; " + refusals.text)};
    }
    if (wanted.has_value()) {
      throw Error(ErrorKind::io, {"cannot use the I/O engine", name, probe.reason,
                                  "name another engine, or none to take the best that works"});
    }
    refusals = (refusals.text.empty() ? "" : refusals.text + " ") + name + " does not work here (" +
               probe.reason + ")";
  }
  throw Error(ErrorKind::io,
              {"cannot use any I/O engine", "this kernel", refusals, "see what forbids all of them here"});
}

}  // namespace terrace::io
