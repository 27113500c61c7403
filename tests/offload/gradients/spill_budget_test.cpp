// How much host memory a run needs at least, with every gradient on nvme, and with how much none is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>

#include "offload/gradients/spill_rig.h"

namespace terrace::spill_budget_test {
namespace {

constexpr uint64_t kSteps = 2;

struct Trained {
  std::vector<std::byte> state;
  OffloadCounters moved;
  MemoryPlan plan;
  uint64_t host_bytes = 0;  // of the ledger
  bool has_file = false;    // for gradients
};

Trained train(const CommitCase& c) {
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  for (uint64_t step = 1; step <= kSteps; ++step) rig.step(step);
  Trained trained{rig.state(), rig.offloader->report().counters(), rig.offloader->plan()};
  for (const TierUse& use : rig.offloader->budget().ledger()) trained.host_bytes += use.bytes;
  trained.has_file = std::filesystem::exists(folder.path() / "terrace-tier" / "grads.tier");
  return trained;
}

CommitCase with_budget(CommitCase c, std::function<uint64_t(const MemoryPlan&)> budget) {
  c.host_budget = std::move(budget);
  return c;
}

TEST(SpillBudget, TheLeastTrainsWithEveryGradientOnNvme) {
  for (const CommitCase& c : spilling_cases()) {
    SCOPED_TRACE(text_of(c));
    const Trained spilled = train(c);
    const Trained held = train(with_budget(c, spill_nothing));
    EXPECT_EQ(spilled.plan.spilled_chunks, spilled.plan.record_chunks);
    EXPECT_EQ(spilled.plan.host_bytes, spilled.plan.host_minimum_bytes);
    EXPECT_EQ(spilled.host_bytes, spilled.plan.host_minimum_bytes);
    EXPECT_LT(spilled.plan.host_minimum_bytes, held.plan.host_holding_bytes);
    EXPECT_GT(spilled.moved.gradient_write_bytes, 0u);
    EXPECT_TRUE(spilled.has_file);
    EXPECT_EQ(spilled.state, held.state);
  }
}

TEST(SpillBudget, LessThanTheLeastIsRefusedWithTheBytesThatAreMissing) {
  for (const CommitCase& c : spilling_cases()) {
    SCOPED_TRACE(text_of(c));
    for (const uint64_t missing : {uint64_t{1}, uint64_t{1000}}) {
      const ScratchFolder folder;
      uint64_t least = 0;
      const CommitCase less = with_budget(c, [&](const MemoryPlan& roomy) {
        least = roomy.host_minimum_bytes;
        return least - missing;
      });
      try {
        const CommitRig rig(less, folder.path());
        ADD_FAILURE() << "a budget that is too small was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::capacity);
        const std::string expected = fmt::format("({} bytes), so that {}: gradients ", least,
                                                 missing_text({"host", least - missing, least}));
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
        EXPECT_NE(error.parts().advice.in(Door::cpp).find("OffloadOptions::host_budget_bytes"),
                  std::string::npos)
            << error.what();
      }
      EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    }
  }
}

// The parts that a refusal lists are all of what is needed.
TEST(SpillBudget, ARefusalCountsTheOldParametersOfCompactState) {
  CommitCase c{.parameters = Placement::nvme, .durable = false, .layout = kCompact};
  MemoryPlan roomy;
  c.host_budget = [&](const MemoryPlan& plan) {
    roomy = plan;
    return plan.host_minimum_bytes - 1;
  };
  const ScratchFolder folder;
  try {
    const CommitRig rig(c, folder.path());
    FAIL() << "a budget that is too small was taken";
  } catch (const Error& error) {
    constexpr uint64_t kSlots = 2 + 2;  // staging, old parameters
    const uint64_t io_bytes = kSlots * roomy.slot_bytes + 4 * roomy.ring_slot_bytes;
    EXPECT_NE(std::string(error.what()).find("staging and I/O " + format_bytes(io_bytes)), std::string::npos)
        << error.what();
  }
}

TEST(SpillBudget, TheOneThatHoldsAllSpillsNothingAndOneByteLessDoes) {
  for (const CommitCase& c : spilling_cases()) {
    SCOPED_TRACE(text_of(c));
    const Trained held = train(with_budget(c, spill_nothing));
    EXPECT_EQ(held.plan.spilled_chunks, 0u);
    EXPECT_EQ(held.moved.gradient_write_bytes + held.moved.gradient_read_bytes, 0u);
    EXPECT_FALSE(held.has_file);
    const Trained less =
        train(with_budget(c, [](const MemoryPlan& roomy) { return roomy.host_holding_bytes - 1; }));
    EXPECT_GT(less.plan.spilled_chunks, 0u);
    EXPECT_LE(less.plan.host_bytes, less.plan.host_holding_bytes - 1);
    EXPECT_GT(less.moved.gradient_write_bytes, 0u);
    EXPECT_TRUE(less.has_file);
    EXPECT_EQ(less.state, held.state);
  }
}

TEST(SpillBudget, EveryOneInBetweenIsKeptAndSpillsNoMoreThanASmallerOne) {
  constexpr uint64_t kParts = 4;
  for (const CommitCase& c : spilling_cases()) {
    SCOPED_TRACE(text_of(c));
    const std::vector<std::byte> expected = train(with_budget(c, spill_nothing)).state;
    uint32_t before = UINT32_MAX;
    for (uint64_t part = 0; part <= kParts; ++part) {
      uint64_t budget = 0;
      const Trained trained = train(with_budget(c, [&](const MemoryPlan& roomy) {
        budget =
            roomy.host_minimum_bytes + (roomy.host_holding_bytes - roomy.host_minimum_bytes) * part / kParts;
        return budget;
      }));
      EXPECT_LE(trained.host_bytes, budget) << part;
      EXPECT_LE(trained.plan.spilled_chunks, before) << part;
      before = trained.plan.spilled_chunks;
      EXPECT_EQ(trained.state, expected) << part;
    }
    EXPECT_EQ(before, 0u);
  }
}

}  // namespace
}  // namespace terrace::spill_budget_test
