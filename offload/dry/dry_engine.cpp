#include <terrace/offload/dry/dry_engine.h>

namespace terrace {

DryEngine::~DryEngine() {
  while (in_flight() > 0) poll();
}

void DryEngine::submit(std::span<const io::Request> requests) {
  const uint64_t room = uint64_t{options_.queue_depth} + options_.backlog_count;
  for (const io::Request& request : requests) {
    while (accepted_.size() >= room) complete_next();
    accepted_.push_back(request);
    ++stats_.requests;
    (request.kind == io::OpKind::read ? stats_.bytes_read : stats_.bytes_written) += request.bytes;
  }
}

// Requests that a callback submits complete in the next poll(), as if they took time.
size_t DryEngine::poll() {
  const size_t count = accepted_.size();
  for (size_t done = 0; done < count && !accepted_.empty(); ++done) complete_next();
  return count;
}

void DryEngine::complete_next() {
  const io::Request request = accepted_.front();
  accepted_.pop_front();
  request.on_complete(request.context, {0, request.bytes, request.tag});
}

}  // namespace terrace
