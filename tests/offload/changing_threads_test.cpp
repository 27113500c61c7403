// An Offloader whose every call comes from another thread, which ends then, gives the bits of one that a
// single thread calls.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "offload/offloader_rig.h"
#include "support/changing_threads.h"

namespace terrace::changing_threads_test {
namespace {

constexpr uint64_t kSteps = 2;

using Places = std::tuple<Placement, Placement>;  // of parameters and of states

class ChangingThreads : public ::testing::TestWithParam<Places> {
 protected:
  static Case base() {
    Case c;
    c.parameters = std::get<0>(GetParam());
    c.states = std::get<1>(GetParam());
    c.accumulation = 2;
    c.tight = false;
    c.durable = c.states == Placement::nvme;
    return c;
  }
  static bool uses_nvme(const Case& c) {
    return c.parameters == Placement::nvme || c.states == Placement::nvme;
  }
};

struct Outcome {
  std::vector<double> norms;
  std::vector<std::byte> state;
  uint64_t commits = 0;
  bool operator==(const Outcome&) const = default;
};

void train_step(ToyRig& rig, uint64_t number, const testing::Caller& call, Outcome& outcome) {
  Offloader& offloader = *rig.offloader;
  testing::AccessByCaller access(offloader, call);
  const std::vector<OptimizerSettings> groups = toy::groups(rig.kind);
  const UpdateSettings settings = {groups, number, rig.clip_norm};
  call([&] { offloader.begin_step(); });
  call([&] { offloader.announce_update(settings); });
  for (uint32_t m = 0; m < rig.accumulation; ++m) {
    toy::run_micro_batch(access, rig.specs, m);
    call([&] { offloader.end_micro_batch(); });
  }
  outcome.norms.push_back(call([&] { return offloader.update(settings); }).gradient_norm);
}

// With a step that is given up, an evaluation, changes of the budget and commits.
Outcome train(const Case& c, bool changes) {
  const testing::Caller call(changes ? 1 : 0);
  const ScratchFolder folder;
  std::unique_ptr<ToyRig> rig = call([&] { return std::make_unique<ToyRig>(c, std::vector{folder.path()}); });
  Offloader& offloader = *rig->offloader;
  testing::AccessByCaller access(offloader, call);
  Outcome outcome;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    train_step(*rig, step, call, outcome);
    if (c.durable) call([&] { offloader.commits().begin(std::to_string(step)); });
    if (step == 1) call([&] { offloader.budget().set(offloader.budget().least()); });
  }
  call([&] { offloader.begin_step(); });
  toy::run_micro_batch(access, rig->specs, 0);
  call([&] { offloader.abandon_step(); });
  call([&] { offloader.begin_evaluation(); });
  const TensorId first{0};
  {
    const Lease lease(access, "eval/embed", {&first, 1}, UseKind::inference);
    EXPECT_NE(lease.parameter<std::byte>(first), nullptr);
  }
  call([&] { offloader.end_evaluation(); });
  if (c.durable) outcome.commits = call([&] { return offloader.commits().finish(); });
  outcome.state = call([&] { return rig->state(); });
  call([&] { rig.reset(); });
  return outcome;
}

void expect_same(const Case& c, const std::string& what) {
  EXPECT_TRUE(train(c, true) == train(c, false)) << what;
}

TEST_P(ChangingThreads, GiveTheSameBitsThroughEveryEngine) {
  for (const io::EngineKind engine : io::engine_kinds()) {
    Case c = base();
    c.engine = engine;
    if (!io::probe_engine(engine).works) continue;
    expect_same(c, std::string(io::name_of(engine)));
    if (!uses_nvme(c)) break;
  }
}

TEST_P(ChangingThreads, GiveTheSameBitsWheneverUpdatesRun) {
  if (base().states == Placement::none) GTEST_SKIP() << "states on the device are updated after backward";
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const double clip_norm : {0.0, 0.5}) {
      Case c = base();
      c.mode = mode;
      c.clip_norm = clip_norm;
      expect_same(c, fmt::format("{}, clipped at {}", name_of(mode), clip_norm));
    }
  }
}

TEST_P(ChangingThreads, GiveTheSameBitsWithTheLeastBudgets) {
  Case c = base();
  c.tight = true;
  expect_same(c, "");
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, ChangingThreads,
    ::testing::Combine(::testing::Values(Placement::none, Placement::cpu, Placement::nvme),
                       ::testing::Values(Placement::none, Placement::cpu, Placement::nvme)),
    [](const auto& instance) {
      return fmt::format("{}_{}", name_of(std::get<0>(instance.param)), name_of(std::get<1>(instance.param)));
    });

}  // namespace
}  // namespace terrace::changing_threads_test
