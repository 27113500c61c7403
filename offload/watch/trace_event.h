// TraceEvent: one event of a step, as StepEvents keeps it. Times are those of the recorder's clock.
//
//   kind      meaning                                       fields
//   step      a training step, from begin_step to its end   step
//   use       an operation computes with its lease          name, use, micro_batch; counts: chunks on the
//                                                           device, on their way, fetched on demand
//   wait      a thread waits                                lane (0: step thread, 1: updates), cause, chunk
//   transfer  bytes go over a link, or come from other      link, role, reason, chunk, bytes;
//             ranks
//                                                           nvme: path, and lane of the engine;
//                                                           h2d: id of the fetch
//   queue     a request was handed to an engine, or has     lane of the engine; id: requests in flight;
//             left it                                       bytes: bytes in flight
//   update    records of a chunk are updated                lane: the worker, or kDeviceUpdateLane; chunk;
//                                                           bytes of the records
//   commit    a commit, until it is durable or has failed   id: its number; bytes written for it; failed
//   fetch     parameters, from their request (begin) until  chunk; id of the h2d transfer; 0: the operation
//             an operation has them (end)                   needed them already when they were requested
//   evict     parameters make room on the device            chunk
//   place     a chunk takes a device slot, or has one when  role (param, grad), chunk; counts: device slots
//             the step begins                               with parameters, with gradients, leaving
//   leave     a chunk gives up its device slot              the fields of place, after the chunk has left
//   gauge     an amount changes, or a step begins           gauge; id: the amount
//
// The kinds queue, evict, place, leave and gauge are moments: end_ns is begin_ns.
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

// gather, exchange: from other ranks.
enum class TraceLink : uint8_t { h2d, d2h, nvme_read, nvme_write, gather, exchange };
inline constexpr size_t kTraceLinkCount = 6;
inline constexpr std::array<TraceLink, kTraceLinkCount> kTraceLinks = {
    TraceLink::h2d,        TraceLink::d2h,    TraceLink::nvme_read,
    TraceLink::nvme_write, TraceLink::gather, TraceLink::exchange};

enum class TransferRole : uint8_t { param, grad, state, activation };
inline constexpr size_t kTransferRoleCount = 4;

// The purpose of a transfer. `other` is in no counter of a step: first values, evaluations, exports, budgets.
enum class TransferReason : uint8_t { step, update, commit, other };

// host_bytes: bytes of the host arenas. kept_records: chunks whose optimizer states are resident in host
// memory. ring_slots: slots of the I/O ring in use.
enum class TraceGauge : uint8_t { host_bytes, kept_records, ring_slots };

// "h2d", "d2h", "nvme_read", "nvme_write", "gather", "exchange"; "param", "grad", "state", "activation";
// "step", "update", "commit", "other".
std::string_view key_of(TraceLink link);
std::string_view key_of(TransferRole role);
std::string_view key_of(TransferReason reason);

inline constexpr uint32_t kNoTraceChunk = UINT32_MAX;
// The lane of updates on the device.
inline constexpr uint16_t kDeviceUpdateLane = UINT16_MAX;

struct TraceEvent {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint32_t step = 0;               // the step that counts the event; 0: between two steps
  uint32_t chunk = kNoTraceChunk;  // for activations the number of the checkpoint
  uint32_t name = 0;               // a number for StepEvents::name()
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
  uint8_t path = 0;  // index into TraceFacts::nvme_paths
  bool failed = false;
};

}  // namespace terrace
