// Which store a run's gradients have, and the memory that it takes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/gradient_runs.h>
#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/offload/homes/spilled_gradients.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// What gradients of a run are made with. All references outlive the store.
struct GradientParts {
  const FlatSpace& space;
  const OffloadOptions& options;
  const MemoryPlan& plan;
  HostArena& arena;
  Device& device;
  DeviceCache& cache;
  const ParamHome& home;
  const GradientRuns& runs;
  SpilledGradients* spilled;  // null where nothing is
  Workers& workers;
  InstructionSet instruction_set;
  std::span<std::byte> work_memory;
};

// The store that the options ask for, in memory as the plan divides it.
std::unique_ptr<GradientStore> make_gradient_store(const GradientParts& parts);

}  // namespace terrace
