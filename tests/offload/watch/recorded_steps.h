// Steps of an Offloader that are recorded, and what their events have to do with its counters.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/step_view.h>

namespace terrace {

class RecordedSteps {
 public:
  explicit RecordedSteps(uint64_t first_step = 1)
      : events(clock, {.memory_bytes = 4 << 20, .first_step = first_step}) {}

  // Around begin_step() to update() of an offloader that is made with `events`. What keeps the state between
  // two steps, or changes budgets, is counted in the later one.
  void begin(uint64_t step, const Offloader& offloader) {
    step_ = step;
    events.begin_step(step);
    if (moved_.empty()) before_ = offloader.report().counters();
  }
  void end(const Offloader& offloader) {
    const OffloadCounters now = offloader.report().counters();
    moved_.emplace_back(step_, now - before_);
    before_ = now;
    events.end_step();
  }
  // Everything that was asked for has ended.
  void take() {
    events.take([this](const TraceEvent& event) { taken.push_back(event); });
  }
  // Only those from this step on are compared.
  void forget_before(uint64_t step) {
    std::erase_if(moved_, [step](const auto& moved) { return moved.first < step; });
  }
  std::vector<TraceEvent> of(TraceKind kind) const {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : taken) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }

  uint64_t bytes(TraceLink link) const {
    uint64_t sum = 0;
    for (const TraceEvent& event : of(TraceKind::transfer)) sum += event.link == link ? event.bytes : 0;
    return sum;
  }

  // The first thing in which the events of a step differ from what the offloader counted in it; else empty.
  std::string difference() const {
    if (events.left_out() > 0) return "events are left out";
    for (const auto& [step, counted] : moved_) {
      const std::string found = difference_of(static_cast<uint32_t>(step), counted);
      if (!found.empty()) return fmt::format("step {}: {}", step, found);
    }
    return "";
  }

  SteadyClock clock;
  StepEvents events;
  std::vector<TraceEvent> taken;

 private:
  std::string difference_of(uint32_t step, const OffloadCounters& counted) const {
    const auto bytes = [&](TraceLink link, TransferRole role) {
      uint64_t sum = 0;
      for (const TraceEvent& event : taken) {
        if (event.kind == TraceKind::transfer && event.step == step && event.link == link &&
            event.role == role && event.reason != TransferReason::other &&
            event.reason != TransferReason::commit)
          sum += event.bytes;
      }
      return sum;
    };
    const auto copied = [&](TraceLink link) {
      return bytes(link, TransferRole::param) + bytes(link, TransferRole::grad) +
             bytes(link, TransferRole::state);
    };
    const auto count = [&](TraceKind kind) {
      uint64_t number = 0;
      for (const TraceEvent& event : taken) number += event.kind == kind && event.step == step ? 1 : 0;
      return number;
    };
    uint64_t on_demand = 0;
    for (const TraceEvent& event : taken) {
      if (event.kind == TraceKind::use && event.step == step) on_demand += event.counts[2];
    }
    const std::vector<std::tuple<const char*, uint64_t, uint64_t>> pairs = {
        {"h2d bytes", copied(TraceLink::h2d), counted.h2d_bytes},
        {"d2h bytes", copied(TraceLink::d2h), counted.d2h_bytes},
        {"activations h2d", bytes(TraceLink::h2d, TransferRole::activation), counted.activation_h2d_bytes},
        {"activations d2h", bytes(TraceLink::d2h, TransferRole::activation), counted.activation_d2h_bytes},
        {"activations read", bytes(TraceLink::nvme_read, TransferRole::activation),
         counted.activation_read_bytes},
        {"activations written", bytes(TraceLink::nvme_write, TransferRole::activation),
         counted.activation_write_bytes},
        {"parameters read", bytes(TraceLink::nvme_read, TransferRole::param), counted.param_read_bytes},
        {"parameters written", bytes(TraceLink::nvme_write, TransferRole::param), counted.param_write_bytes},
        {"records read", bytes(TraceLink::nvme_read, TransferRole::state), counted.record_read_bytes},
        {"records written", bytes(TraceLink::nvme_write, TransferRole::state), counted.record_write_bytes},
        {"gradients read", bytes(TraceLink::nvme_read, TransferRole::grad), counted.gradient_read_bytes},
        {"gradients written", bytes(TraceLink::nvme_write, TransferRole::grad), counted.gradient_write_bytes},
        {"parameters of other ranks", bytes(TraceLink::gather, TransferRole::param), counted.gather_in_bytes},
        {"gradients of other ranks", bytes(TraceLink::exchange, TransferRole::grad),
         counted.exchange_in_bytes},
        {"fetches on demand", on_demand, counted.demand_fetch_count},
        {"evictions", count(TraceKind::evict), counted.eviction_count},
    };
    for (const auto& [what, recorded, expected] : pairs) {
      if (recorded != expected) return fmt::format("{}: {} recorded, {} counted", what, recorded, expected);
    }
    return "";
  }

  uint64_t step_ = 0;
  OffloadCounters before_;
  std::vector<std::pair<uint64_t, OffloadCounters>> moved_;
};

}  // namespace terrace
