// UringTransport: pieces through io_uring, and wake() through an eventfd that the ring itself polls, so that
// both kinds of news arrive in one completion queue. It must never busy-wait.
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
