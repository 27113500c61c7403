// UringTransport: pieces through io_uring, and wake() through an eventfd that the ring itself polls, so that
// both kinds of news arrive in one completion queue. It must never busy-wait, except for pieces on a ring
// that polls the drive (EngineOptions::io_uring_iopoll).
#pragma once

#include <memory>
#include <string>

#include <terrace/aio/engines/transport.h>

namespace terrace::io {

// Returns null, with the reason in `words`, when io_uring does not work here; otherwise `words` is empty or
// says what an older kernel lacks. `log` hears when polling is refused, and must outlive a transport that
// polls.
std::unique_ptr<Transport> make_uring_transport(const EngineOptions& options, Log& log, std::string& words);

}  // namespace terrace::io
