// UringTransport: pieces through io_uring, and wake() through an eventfd that the ring itself polls, so that
// both kinds of news arrive in one completion queue. It must never busy-wait.
//
// A thread that ends leaves its pieces in flight. The kernel moves most of them all the same and gives the
// others up; whoever goes on starts those again.
#pragma once

#include <memory>
#include <string>

#include <terrace/aio/engines/transport.h>
#include <terrace/base/error.h>

namespace terrace::io {

// Returns null, with the reason in `words`, when io_uring does not work here.
std::unique_ptr<Transport> make_uring_transport(uint32_t queue_depth, Reason& words);

}  // namespace terrace::io
