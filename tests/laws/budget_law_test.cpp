// Law 2: budgets are hard. A real model trains with everything on disk; the operating system's account of
// this process must not grow beyond the two budgets, and no step may take memory past the arenas.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/machine.h>
#include <terrace/memory/simulated_device.h>
#include <terrace/runtime/models/model.h>

#include "laws/plain_training.h"
#include "offload/toy_training.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define TERRACE_WATCHES_MALLOC 1
#endif

#ifdef TERRACE_WATCHES_MALLOC
// Every allocation of the process passes here, those of libraries included. glibc's own functions do the
// work.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
std::atomic<size_t> largest_allocation{0};

void note(size_t bytes) {
  size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
}
}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  note(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  note(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace terrace::laws {
namespace {

ModelConfig model_config() {
  ModelConfig config;
  config.layers = 3;
  config.heads = 4;
  config.width = 256;
  config.context = 128;
  config.vocabulary = 2048;
  return config;
}

struct Budgets {
  OffloadOptions options;
  uint64_t total() const { return options.device_budget_bytes + options.host_budget_bytes; }
};

Budgets least_budgets(const FlatSpace& space, const DryRun& dry, const std::filesystem::path& folder) {
  Budgets budgets;
  OffloadOptions& options = budgets.options;
  options.parameters = options.states = Placement::nvme;
  options.parameter_paths = options.state_paths = {{folder}};
  options.work_bytes = dry.work_bytes;
  options.lock_host_memory = false;
  options.io.kind = io::EngineKind::threads;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  const MemoryPlan plan = plan_memory(space, dry.trace, options);
  options.device_budget_bytes = plan.device_minimum_bytes;
  options.host_budget_bytes = plan.host_minimum_bytes;
  return budgets;
}

TEST(BudgetLaw, TheSystemsAccountStaysWithinTheBudgets) {
  const std::unique_ptr<Model> owner = make_model(model_config(), {});
  const Model& model = *owner;
  const FlatSpace space(model.tensors(), 16 * kTileElements);
  Workers workers(2);
  const HostOps ops(workers, best_instruction_set());
  const DryRun dry = run_dry(model, 1, workers);
  const toy::ScratchFolder folder;
  const Budgets budgets = least_budgets(space, dry, folder.path());
  ASSERT_LT(budgets.total(), space.parameter_count() * 14) << "the model must not fit into the budgets";

  MemoryLog log;
  const uint64_t before = current_memory_use().pss_bytes;
  SimulatedDevice device({budgets.options.device_budget_bytes});
  Offloader offloader(space, budgets.options, dry.trace, device, workers, log);
  offloader.initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    model.initial_values(tensor, first, values);
  });
  StackArena arena(offloader.work_memory());
  uint64_t most = 0;
  for (uint64_t step = 1; step <= 3; ++step) {
#ifdef TERRACE_WATCHES_MALLOC
    if (step == 2) largest_allocation = 0;
#endif
    offloader.begin_step();
    const TokenBatch tokens(model.config(), step);
    model.train_micro_batch(ops, offloader, arena, tokens.view(), 1.0f, "mb0/");
    offloader.end_micro_batch();
    const std::vector<OptimizerSettings> groups = settings(step);
    offloader.update({groups, step, 1.0});
    most = std::max(most, current_memory_use().pss_bytes - before);
  }
  // Thread stacks, tables and code touched for the first time are the process's own, not a tier's.
  const uint64_t own = 8 * kMiB;
  EXPECT_LE(most, budgets.total() + own) << "budgets " << budgets.total();
  EXPECT_GE(most, budgets.total() * 3 / 4) << "the account is not of this memory at all";
  EXPECT_LE(device.peak_bytes(), budgets.options.device_budget_bytes);
#ifdef TERRACE_WATCHES_MALLOC
  EXPECT_LT(largest_allocation.load(), kMiB) << "a step took memory past the arenas";
#else
  std::printf("allocations are not watched under a sanitizer\n");
#endif
}

TEST(BudgetLaw, OneByteLessIsRefusedBeforeAnythingIsAllocated) {
  const std::unique_ptr<Model> owner = make_model(model_config(), {});
  const Model& model = *owner;
  const FlatSpace space(model.tensors(), 16 * kTileElements);
  Workers workers(1);
  const DryRun dry = run_dry(model, 1, workers);
  const toy::ScratchFolder folder;
  for (uint64_t OffloadOptions::*budget :
       {&OffloadOptions::device_budget_bytes, &OffloadOptions::host_budget_bytes}) {
    Budgets budgets = least_budgets(space, dry, folder.path());
    budgets.options.*budget -= 1;
    MemoryLog log;
    SimulatedDevice device({budgets.options.device_budget_bytes});
    EXPECT_THROW(Offloader(space, budgets.options, dry.trace, device, workers, log), Error);
    EXPECT_EQ(device.used_bytes(), 0u);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

}  // namespace
}  // namespace terrace::laws
