// TraceEvent: one thing that happened in a step, as StepEvents keeps it. Times are those of the recorder's
// clock.
//
//   kind      is                                            with
//   step      a training step, from begin_step to its end   step
//   use       an operation computes with its lease          name, use, micro_batch, counts: of its chunks
//   those
//                                                           on the device, on their way, fetched on demand
//   wait      a thread waits                                lane (0 the step thread, 1 that of updates),
//   cause,
//                                                           chunk
//   transfer  bytes go over a link                          link, role, reason, chunk, bytes, path (nvme),
//   lane:
//                                                           of its engine (nvme), id: of the fetch (h2d)
//   queue     a request was handed to an engine, or has     lane: the engine, id: requests in flight now,
//             left it                                       bytes: of them
//   update    records of a chunk are updated                lane: the worker, or kDeviceUpdateLane; chunk,
//                                                           bytes: of records
//   commit    from its beginning until it is durable or      id: its number, bytes: written for it; failed
//             has failed
//   fetch     parameters: asked for (begin) until an        chunk, id: of its transfer h2d; 0: asked for when
//             operation has them (end)                      the operation needed them already
//   evict     parameters make room on the device            chunk
//   place     a chunk takes a device slot, or has one when  role (param, gradient), chunk, counts: slots of
//   the
//             the step begins                               device with parameters, with gradients, and
//             leaving
//   leave     a chunk gives up its device slot              the same, after it
//   gauge     an amount changes, or a step begins           gauge, id: the amount
//
// Kinds from `queue` on but commit and fetch are moments: end_ns is begin_ns.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

enum class TraceKind : uint8_t {
  step,
  use,
  wait,
  transfer,
  queue,
  update,
  commit,
  fetch,
  evict,
  place,
  leave,
  gauge
};

enum class TraceLink : uint8_t { h2d, d2h, nvme_read, nvme_write };
inline constexpr size_t kTraceLinkCount = 4;
inline constexpr std::array<TraceLink, kTraceLinkCount> kTraceLinks = {
    TraceLink::h2d, TraceLink::d2h, TraceLink::nvme_read, TraceLink::nvme_write};

enum class TransferRole : uint8_t { param, grad, state, activation };
inline constexpr size_t kTransferRoleCount = 4;

// For what bytes move. `other` is in no counter of a step: first values, evaluations, exports, budgets.
enum class TransferReason : uint8_t { step, update, commit, other };

// host_bytes: of the arenas; kept_records: chunks whose optimizer states are in host memory; ring_slots: of
// the I/O ring, in use.
enum class TraceGauge : uint8_t { host_bytes, kept_records, ring_slots };

// "h2d", "d2h", "nvme_read", "nvme_write"; "param", "grad", "state", "activation"; "step", "update",
// "commit", "other".
std::string_view key_of(TraceLink link);
std::string_view key_of(TransferRole role);
std::string_view key_of(TransferReason reason);

inline constexpr uint32_t kNoTraceChunk = UINT32_MAX;
// Of updates on the device.
inline constexpr uint16_t kDeviceUpdateLane = UINT16_MAX;

struct TraceEvent {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint32_t step = 0;               // in which it is counted; 0: between two steps
  uint32_t chunk = kNoTraceChunk;  // of activations: which checkpoint
  uint32_t name = 0;               // StepEvents::name()
  std::array<uint32_t, 3> counts{};
  uint16_t micro_batch = 0;
  uint16_t lane = 0;
  TraceKind kind = TraceKind::step;
  UseKind use = UseKind::forward;
  TimeCause cause = TimeCause::overhead;
  TraceLink link = TraceLink::h2d;
  TransferRole role = TransferRole::param;
  TransferReason reason = TransferReason::step;
  TraceGauge gauge = TraceGauge::host_bytes;
  uint8_t path = 0;  // of TraceFacts::nvme_paths
  bool failed = false;
};

}  // namespace terrace
