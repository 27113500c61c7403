// A step of a model of many chunks as it would have been recorded: forward through all of them, backward with
// gradients that leave, then the update that streams.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <terrace/runtime/observe/page/step_picture.h>

namespace terrace::testing {

inline std::optional<StepPicture> sample_picture(uint32_t chunks) {
  constexpr uint64_t kUseNs = 10'000;
  constexpr uint32_t kWindow = 40;  // slots
  std::vector<TraceEvent> events;
  const auto add = [&](TraceKind kind, uint64_t begin_ns, uint64_t end_ns) -> TraceEvent& {
    TraceEvent& event = events.emplace_back();
    event.kind = kind;
    event.step = 4;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    return event;
  };
  const auto move = [&](TraceLink link, TransferRole role, uint32_t chunk, uint64_t begin_ns,
                        uint64_t end_ns) {
    TraceEvent& event = add(TraceKind::transfer, begin_ns, end_ns);
    event.link = link;
    event.role = role;
    event.chunk = chunk;
    event.bytes = 16 << 20;
  };
  const auto hold = [&](TransferRole role, uint32_t chunk, uint64_t begin_ns, uint64_t end_ns) {
    for (const bool begins : {true, false}) {
      const uint64_t at_ns = begins ? begin_ns : end_ns;
      TraceEvent& event = add(begins ? TraceKind::place : TraceKind::leave, at_ns, at_ns);
      event.role = role;
      event.chunk = chunk;
      event.counts = {kWindow / 2, role == TransferRole::grad ? 12u : 0u, begins ? 0u : 3u};
    }
  };
  const uint64_t forward_ns = chunks * kUseNs;
  for (uint32_t i = 0; i < chunks; ++i) {
    const uint64_t forward = (i + 1) * kUseNs;
    move(TraceLink::h2d, TransferRole::param, i, forward - kUseNs, forward);
    hold(TransferRole::param, i, forward, forward + kWindow * kUseNs);
    add(TraceKind::use, forward, forward + kUseNs).use = UseKind::forward;
    const uint64_t backward = 2 * forward_ns + 2 * (chunks - i) * kUseNs;
    move(TraceLink::h2d, TransferRole::param, i, backward - 3 * kUseNs, backward - kUseNs);
    hold(TransferRole::param, i, backward - kUseNs, backward + 2 * kUseNs);
    hold(TransferRole::grad, i, backward, backward + kWindow * kUseNs);
    add(TraceKind::use, backward, backward + 2 * kUseNs).use = UseKind::backward;
    move(TraceLink::d2h, TransferRole::grad, i, backward + kWindow * kUseNs,
         backward + (kWindow + 2) * kUseNs);
    const uint64_t update = 4 * forward_ns + kWindow * kUseNs + i * kUseNs;
    move(TraceLink::nvme_read, TransferRole::state, i, update, update + 3 * kUseNs);
    add(TraceKind::update, update + 3 * kUseNs, update + 4 * kUseNs).chunk = i;
    move(TraceLink::nvme_write, TransferRole::state, i, update + 4 * kUseNs, update + 7 * kUseNs);
  }
  add(TraceKind::step, 0, 5 * forward_ns + (kWindow + 7) * kUseNs);
  TraceEvent& host = add(TraceKind::gauge, 0, 0);
  host.gauge = TraceGauge::host_bytes;
  host.id = uint64_t{12} << 30;
  TraceEvent& ring = add(TraceKind::gauge, 4 * forward_ns, 4 * forward_ns);
  ring.gauge = TraceGauge::ring_slots;
  ring.id = 12;
  TraceFacts facts;
  facts.chunk_count = chunks;
  facts.device_slot_count = kWindow;
  facts.device_slot_bytes = 64 << 20;
  facts.device_other_bytes = uint64_t{1} << 30;
  facts.device_budget_bytes = uint64_t{4} << 30;
  facts.host_budget_bytes = uint64_t{16} << 30;
  facts.ring_slot_count = 16;
  facts.ring_slot_bytes = 1 << 20;
  return make_step_picture(events, facts, 4);
}

}  // namespace terrace::testing
