#include <terrace/offload/watch/traced_engine.h>

#include <algorithm>
#include <array>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// The requests that are wrapped at a time, on the stack.
constexpr size_t kBatch = 32;

}  // namespace

// No engine holds more requests than its queue and its backlog have room for, and one batch is on its way to
// it.
TracedEngine::TracedEngine(std::unique_ptr<io::Engine> base, StepEvents& events, std::string_view name)
    : EngineDecorator(std::move(base)),
      events_(events),
      lane_(events.add_engine(name)),
      places_(size_t{options().queue_depth} + options().backlog_count + kBatch) {
  for (Place& place : places_) {
    place.engine = this;
    free_.push_back(&place);
  }
}

// The requests end first, because the places go before the engine does.
TracedEngine::~TracedEngine() {
  while (base().in_flight() > 0) base().wait(base().in_flight());
}

void TracedEngine::submit(std::span<const io::Request> requests) {
  std::array<io::Request, kBatch> batch;
  while (!requests.empty()) {
    const size_t count = std::min(requests.size(), batch.size());
    for (size_t r = 0; r < count; ++r) batch[r] = wrap(requests[r]);
    base().submit({batch.data(), count});
    requests = requests.subspan(count);
  }
}

io::Request TracedEngine::wrap(const io::Request& request) {
  if (!StepEvents::is_tag(request.tag) && !events_.recording()) return request;
  TERRACE_ASSERT(!free_.empty(), "an engine holds no more requests than its options say");
  Place& place = *free_.back();
  free_.pop_back();
  place.event = event_of(request);
  place.on_complete = request.on_complete;
  place.context = request.context;
  in_flight_bytes_ += request.bytes;
  record_queue(place.event.begin_ns);
  io::Request wrapped = request;
  wrapped.on_complete = &TracedEngine::on_complete;
  wrapped.context = &place;
  return wrapped;
}

TraceEvent TracedEngine::event_of(const io::Request& request) const {
  TraceEvent event;
  if (StepEvents::is_tag(request.tag)) {
    event = StepEvents::event_of(request.tag);
  } else {
    event.kind = TraceKind::transfer;
    event.role = events_.file_of(request.fd).role;
    event.reason = TransferReason::other;
    event.step = events_.step();
  }
  event.link = request.kind == io::OpKind::read ? TraceLink::nvme_read : TraceLink::nvme_write;
  event.path = events_.file_of(request.fd).path;
  event.lane = lane_;
  event.bytes = request.bytes;
  event.begin_ns = events_.now_ns();
  return event;
}

void TracedEngine::on_complete(void* context, const io::Completion& completion) noexcept {
  Place& place = *static_cast<Place*>(context);
  TracedEngine& engine = *place.engine;
  TraceEvent event = place.event;
  const auto next = place.on_complete;
  void* const next_context = place.context;
  engine.free_.push_back(&place);  // before the callback, which may submit the next request
  engine.in_flight_bytes_ -= event.bytes;
  event.failed = completion.error != 0;
  event.end_ns = engine.events_.now_ns();
  engine.events_.record(event);
  engine.record_queue(event.end_ns);
  next(next_context, completion);
}

void TracedEngine::record_queue(uint64_t at_ns) noexcept {
  TraceEvent event;
  event.kind = TraceKind::queue;
  event.step = events_.step();
  event.lane = lane_;
  event.id = places_.size() - free_.size();
  event.bytes = in_flight_bytes_;
  event.begin_ns = event.end_ns = at_ns;
  events_.record(event);
}

}  // namespace terrace
