// LibaioTransport: pieces through Linux native asynchronous I/O (io_submit), for systems that forbid
// io_uring. It must never let libaio's header into another file.
//
// The kernel moves only direct files (O_DIRECT) on its own here: a buffered one is read or written inside
// start(), which then takes as long as the transfer. Every completion and every wake() counts up one eventfd,
// and a blocking reap() sleeps on that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <terrace/aio/engines/transport.h>
#include <terrace/base/error.h>

namespace terrace::io {

// Returns null, with the reason in `words`, when native asynchronous I/O does not work here.
std::unique_ptr<Transport> make_libaio_transport(uint32_t queue_depth, Reason& words);

}  // namespace terrace::io
