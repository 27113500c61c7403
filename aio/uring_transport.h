// UringTransport: pieces through io_uring. It must never let liburing's header into another file.
//
// The completion queue cannot overflow: the submission queue has room for queue_depth + 1 entries (the extra
// one waits for wake()), the kernel makes the completion queue twice as long, and no more than that is ever
// in flight.
//
// The ring is created disabled, in any thread, so that make_engine() reports what fails; the first start() or
// reap() enables it, and with SINGLE_ISSUER that thread is its only user from then on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <terrace/aio/transport.h>

namespace terrace::io {

// Null with the reason in `words` when io_uring does not work here; otherwise `words` is empty or says what
// an older kernel lacks.
std::unique_ptr<Transport> make_uring_transport(uint32_t queue_depth, std::string& words);

}  // namespace terrace::io
