// Law 2: budgets are hard. A real model trains with everything on disk, whenever its updates run and however
// its state is kept; the operating system's account of this process must not grow beyond the two budgets, and
// no step may take memory past the arenas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/transformer/model.h>

#include "laws/plain_training.h"
#include "support/offloaders.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

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

namespace terrace::laws::budget_law_test {
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

struct BudgetCase {
  UpdateMode mode = UpdateMode::after_backward;
  bool compact = false;
  bool spills = true;  // else host memory has room for every gradient
};

std::string case_name(const ::testing::TestParamInfo<BudgetCase>& info) {
  const BudgetCase& c = info.param;
  return fmt::format("{}_{}_{}", name_of(c.mode), c.compact ? "compact" : "plain",
                     c.spills ? "spilled" : "held");
}

std::vector<BudgetCase> cases() {
  std::vector<BudgetCase> list;
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const bool compact : {false, true}) {
      for (const bool spills : {false, true}) list.push_back({mode, compact, spills});
    }
  }
  return list;
}

struct Budgets {
  OffloadOptions options;
  uint64_t total() const { return options.device_budget_bytes + options.host_budget_bytes; }
};

Budgets least_budgets(const FlatSpace& space, const DryRun& dry, const std::filesystem::path& folder,
                      const BudgetCase& c) {
  Budgets budgets;
  OffloadOptions& options = budgets.options;
  options.parameters = options.states = Placement::nvme;
  options.parameter_paths = options.state_paths = {{folder}};
  options.work_bytes = dry.work_bytes;
  options.io.kind = io::EngineKind::threads;
  if (c.compact) options.record_layout.master = MasterForm::remainder;
  const MemoryPlan roomy = testing::take_least_budgets(options, space, dry.trace);
  if (!c.spills) options.host_budget_bytes = roomy.host_holding_bytes;
  return budgets;
}

// The bytes that the operating system accounts to this process, shared ones in proportion. Pages of files are
// left out: the program's own count for more as soon as another process that runs it ends.
uint64_t account_bytes() {
  std::ifstream account("/proc/self/smaps_rollup");
  uint64_t kilobytes = 0;
  for (std::string line; std::getline(account, line);) {
    const bool counts = line.starts_with("Pss_Anon:") || line.starts_with("Pss_Shmem:");
    if (counts) kilobytes += std::stoull(line.substr(line.find(':') + 1));
  }
  return kilobytes * kKiB;
}

// What the tiers say of themselves.
void expect_within_budgets(const Offloader& offloader, const SimulatedDevice& device,
                           const Budgets& budgets) {
  uint64_t host_bytes = 0;
  for (const TierUse& use : offloader.budget().ledger()) host_bytes += use.bytes;
  EXPECT_LE(host_bytes, budgets.options.host_budget_bytes);
  EXPECT_LE(device.peak_bytes(), budgets.options.device_budget_bytes);
  EXPECT_LE(offloader.report().tier_file_bytes(), offloader.plan().file_bytes());
}

class BudgetLaw : public ::testing::TestWithParam<BudgetCase> {
 protected:
  const std::unique_ptr<Model> owner_ = make_model(model_config(), {});
  const Model& model_ = *owner_;
  const FlatSpace space_{model_.tensors(), 16 * kTileElements};
  Workers workers_{2};
  const DryRun dry_ = run_dry(model_, 1, workers_);
  const ScratchFolder folder_;
  MemoryLog log_;
};

TEST_P(BudgetLaw, TheSystemsAccountStaysWithinTheBudgets) {
  const Budgets budgets = least_budgets(space_, dry_, folder_.path(), GetParam());
  ASSERT_LT(budgets.total(), space_.parameter_count() * 14) << "the model must not fit into the budgets";
  const HostOps ops(workers_, best_instruction_set());
  const uint64_t before = account_bytes();
  SimulatedDevice device({budgets.options.device_budget_bytes});
  Offloader offloader(space_, budgets.options, dry_.trace, device, workers_, log_);
  ASSERT_EQ(offloader.plan().spilled_chunks > 0, GetParam().spills);
  offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    model_.initial_values(tensor, first, values);
  });
  offloader.set_update_mode(GetParam().mode);
  StackArena arena(offloader.work_memory());
  uint64_t most = 0;
  for (uint64_t step = 1; step <= 4; ++step) {
#ifdef TERRACE_WATCHES_MALLOC
    if (step == 2) largest_allocation = 0;
#endif
    const std::vector<OptimizerSettings> groups = settings(step);
    // With clipping, updates during backward read ahead only.
    const UpdateSettings update{groups, step, step % 2 == 0 ? 1.0 : 0};
    offloader.begin_step();
    offloader.announce_update(update);
    const TokenBatch tokens(model_.config(), step);
    model_.train_micro_batch(ops, offloader, arena, tokens.view(), 1.0f, "mb0/");
    offloader.end_micro_batch();
    offloader.update(update);
    if (step == 4) offloader.finish_update();
    // A sanitizer gives back what earlier tests have freed, so less may be there than before.
    most = std::max(most, std::max(account_bytes(), before) - before);
    expect_within_budgets(offloader, device, budgets);
  }
  // Thread stacks, tables and code touched for the first time are the process's own, not a tier's.
  const uint64_t own = 8 * kMiB;
  EXPECT_LE(most, budgets.total() + own) << "budgets " << budgets.total();
  // A sanitizer gives back meanwhile what tests before this one have freed.
  if (!testing::kSanitized) {
    EXPECT_GE(most, budgets.total() * 3 / 4) << "the account is not of this memory at all";
  }
#ifdef TERRACE_WATCHES_MALLOC
  EXPECT_LT(largest_allocation.load(), kMiB) << "a step took memory past the arenas";
#else
  std::printf("allocations are not watched under a sanitizer\n");
#endif
}

INSTANTIATE_TEST_SUITE_P(All, BudgetLaw, ::testing::ValuesIn(cases()), case_name);

using LeastBudgets = BudgetLaw;

TEST_P(LeastBudgets, LessByOneByteAreRefusedBeforeAnythingIsAllocated) {
  for (uint64_t OffloadOptions::*budget :
       {&OffloadOptions::device_budget_bytes, &OffloadOptions::host_budget_bytes}) {
    Budgets budgets = least_budgets(space_, dry_, folder_.path(), GetParam());
    budgets.options.*budget -= 1;
    if (!GetParam().spills && budget == &OffloadOptions::host_budget_bytes) {
      EXPECT_GT(plan_memory(space_, dry_.trace, budgets.options).spilled_chunks, 0u);
      continue;
    }
    SimulatedDevice device({budgets.options.device_budget_bytes});
    EXPECT_THROW(Offloader(space_, budgets.options, dry_.trace, device, workers_, log_), Error);
    EXPECT_EQ(device.used_bytes(), 0u);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, LeastBudgets,
                         ::testing::Values(BudgetCase{}, BudgetCase{.compact = true},
                                           BudgetCase{.spills = false}),
                         case_name);

}  // namespace
}  // namespace terrace::laws::budget_law_test
