// StepRecorder: records budgets, slots and uses with OffloadHooks::step_events. It decides nothing. The step
// thread uses it.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/aio/ring_buffer.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/step/open_leases.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

class StepRecorder {
 public:
  // HostMemory: the counted parts of host memory.
  struct HostMemory {
    const HostArena& arena;
    const HostArena& record_arena;
    const io::RingBuffer& ring;
  };
  // All references outlive this.
  StepRecorder(const RunContext& run, const StateHomes& homes, DeviceCache& cache, const HostMemory& host);

  // Describes the run to the recorder; call it once, before anything is recorded.
  void describe(const TierStores& tiers) const;
  void begin_step() const;
  void host_budget() const;  // records a change of the host budget
  void begin_use(OpenUse& use, uint32_t micro_batch);
  void end_use(OpenUse& use);

 private:
  bool is_on() const { return is_recording(run_.options.hooks.step_events); }
  void gauge(TraceGauge gauge, uint64_t amount) const;

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  const HostMemory host_;
};

}  // namespace terrace
