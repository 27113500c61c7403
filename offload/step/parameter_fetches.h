// ParameterFetches: brings the parameters of a use to the device, and ahead of time those of the following
// uses. The policy of the device cache or FetchPlan chooses the chunks that leave for them.
// The step thread uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <terrace/base/clock.h>
#include <terrace/memory/space/schedule.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/device/fetch_plan.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/step/open_leases.h>
#include <terrace/offload/update/early_update.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/update_runner.h>
#include <terrace/offload/watch/counters.h>
#include <terrace/offload/watch/decision_log.h>

namespace terrace {

class ParameterFetches {
 public:
  // `finish_update` ends the running update of the step before, whose chunks may then leave the device. All
  // references outlive this.
  ParameterFetches(const RunContext& run, const StateHomes& homes, DeviceCache& cache, UpdateRunner& updates,
                   const EarlyUpdate& early_update, Decisions& decisions,
                   std::function<void()> finish_update);

  // A pinned chunk stays on the device, or on its way there. unpin() undoes one pin().
  void pin(const OpenUse& use);
  void unpin(const OpenUse& use);
  // Fetches the chunks of a pinned use that are neither on the device nor on their way.
  void fetch_missing(OpenUse& use, const EvictionContext& now);
  // True if wait_for_chunks() would not wait.
  bool are_there(const OpenUse& use) const;
  // Waits until all chunks of the use are on the device.
  void wait_for_chunks(const OpenUse& use);
  // Takes a slot for the `role` of a use, as in "parameters". Throws ShortageError with the device budget
  // that the open uses need when all slots are taken.
  CacheSlot& require_slot(std::string_view role, const OpenUse& use, const EvictionContext& now);

  // Begins the fetches that are possible for the uses after `position` of the schedule; kNever: from its
  // first use on. `leased` are the chunks of the use in progress.
  void fetch_ahead(const Schedule& schedule, uint32_t position, std::span<const ChunkId> leased);

  void count(OffloadCounters& counters) const;

 private:
  [[noreturn]] void refuse(std::string_view role, const OpenUse& use) const;
  void send_updated_ahead(const Schedule& schedule, uint32_t position);
  void fetch_by_opt(const Schedule& schedule, uint32_t position, std::span<const ChunkId> leased);
  void fetch_by_policy(const EvictionContext& now);
  bool can_come_ahead(ChunkId chunk) const;
  bool start_ahead(ChunkId chunk, CacheSlot* slot);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  UpdateRunner& updates_;
  const EarlyUpdate& early_update_;
  Decisions& decisions_;
  const std::function<void()> finish_update_;
  const SteadyClock clock_;
  FetchPlan ahead_;
  uint64_t fetch_count_ = 0;
  uint64_t demand_fetch_count_ = 0;
  uint64_t wait_ns_ = 0;
};

}  // namespace terrace
