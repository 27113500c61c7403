// TracedEngine: an engine that records its transfers: when each was submitted, when its owner saw it end, and
// how many were in flight. It must never change what a request does, nor when.
//
// A request with a tag of StepEvents is recorded as the tag's transfer. A request without a tag, submitted
// while a step is recorded, takes its role from its file.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/offload/watch/step_events.h>

namespace terrace {

class TracedEngine final : public io::EngineDecorator {
 public:
  // `events` outlives the engine and shows it under `name`.
  TracedEngine(std::unique_ptr<io::Engine> base, StepEvents& events, std::string_view name);
  ~TracedEngine() override;

  void submit(std::span<const io::Request> requests) override;

 private:
  // A request in flight.
  struct Place {
    TracedEngine* engine = nullptr;
    TraceEvent event;
    void (*on_complete)(void* context, const io::Completion& completion) noexcept = nullptr;
    void* context = nullptr;
  };
  static void on_complete(void* context, const io::Completion& completion) noexcept;
  io::Request wrap(const io::Request& request);
  TraceEvent event_of(const io::Request& request) const;
  void record_queue(uint64_t at_ns) noexcept;

  StepEvents& events_;
  const uint16_t lane_;
  std::vector<Place> places_;
  std::vector<Place*> free_;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace terrace
