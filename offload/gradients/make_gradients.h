// make_gradient_store(): chooses the places of gradients, how they are summed, and the memory for both.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/gradients/gradients_on_nvme.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/plan/run_context.h>

namespace terrace {

// GradientParts: the collaborators of a gradient store. All references outlive the store.
struct GradientParts {
  const RunContext& run;
  HostArena& arena;
  DeviceCache& cache;
  std::span<std::byte* const> parameter_slots;  // ParamHome::host_slots()
  const GradientRuns& runs;
  SpillTier spill;
  std::span<std::byte> work_memory;
  RankPulls* pulls = nullptr;  // null unless ranks pull
};

// Makes the store that the options ask for, in memory as the plan divides it.
std::unique_ptr<GradientStore> make_gradient_store(const GradientParts& parts);

}  // namespace terrace
