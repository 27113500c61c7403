// Law 3 for a disk that fails while epochs are kept: a run that a failing transfer ends, whichever it was and
// whoever asked for it, has said so, and leaves its last epoch to go on from to the same bits.
#include <gtest/gtest.h>

#include <terrace/aio/fault_engine.h>
#include <terrace/base/error.h>

#include "laws/durable_toy.h"
#include "support/sanitized.h"

namespace terrace {
namespace {

using laws::DurableToy;
using laws::DurableToyOptions;

constexpr uint64_t kSteps = 5;

// By the order in which an offloader makes its engines.
enum class Victim : uint32_t { step_engine, reader, committer };

struct Ending {
  std::string error;     // empty: it ended well
  uint64_t durable = 0;  // the step of the last epoch whose commit had ended
  uint64_t transfers = 0;
};

struct FaultCase {
  Victim victim;
  double processor_share = 1;  // of the update
};

std::string name_of(const FaultCase& c) {
  constexpr const char* kNames[] = {"step_engine", "reader", "committer"};
  const std::string name = kNames[static_cast<uint32_t>(c.victim)];
  return c.processor_share < 1 ? name + "_half_updated_on_the_device" : name;
}

void PrintTo(const FaultCase& c, std::ostream* out) {
  *out << name_of(c);
}

// The committer has something to do where records are cached; then parameters are cached, too, and nobody
// reads them.
DurableToyOptions options_for(const FaultCase& c) {
  DurableToyOptions options;
  options.cached_records = c.victim == Victim::committer ? 4 : 0;
  options.processor_share = c.processor_share;
  return options;
}

// Trains with an epoch after every step, until something throws.
Ending train_with(const std::filesystem::path& folder, const FaultCase& c, std::vector<io::Fault> faults) {
  io::FaultPlan plan(std::move(faults));
  Ending ending;
  DurableToyOptions options = options_for(c);
  options.paths = {folder};
  uint32_t made = 0;
  options.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    if (made++ != static_cast<uint32_t>(c.victim)) return engine;
    return std::make_unique<io::FaultEngine>(std::move(engine), plan);
  };
  try {
    DurableToy toy(options);
    toy.initialise();
    for (uint64_t step = 1; step <= kSteps; ++step) {
      toy.train(step);
      toy.offloader->finish_commit();
      ending.durable = step - 1;
      toy.begin_commit(step);
    }
    toy.offloader->finish_commit();
    ending.durable = kSteps;
  } catch (const Error& error) {
    ending.error = error.what();
  }
  ending.transfers = plan.transfers();
  return ending;
}

void expect_resumed(const std::filesystem::path& folder, const FaultCase& c, const Ending& ending,
                    const std::vector<std::vector<std::byte>>& states) {
  DurableToyOptions options = options_for(c);
  options.paths = {folder};
  options.start = TierStart::resume;
  const FoundTier found = look_at_tier(options.paths);
  if (!found.whole) {
    EXPECT_EQ(ending.durable, 0u) << found.trouble;
    return;
  }
  DurableToy toy(options);
  const uint64_t step = toy.taken_up_step();
  EXPECT_GE(step, ending.durable);
  ASSERT_LE(step, kSteps);
  EXPECT_TRUE(toy.state() == states[step]);
  for (uint64_t next = step + 1; next <= kSteps; ++next) toy.train(next);
  EXPECT_TRUE(toy.state() == states[kSteps]);
}

class EpochFaultLaw : public ::testing::TestWithParam<FaultCase> {};

TEST_P(EpochFaultLaw, ADiskThatFailsFromAnyRequestOnEndsTheRunWithItsLastEpochWhole) {
  const std::vector<std::vector<std::byte>> states = laws::states_by_step(kSteps, options_for(GetParam()));
  const toy::ScratchFolder whole;
  const Ending well = train_with(whole.path(), GetParam(), {});
  ASSERT_EQ(well.error, "");
  ASSERT_EQ(well.durable, kSteps);
  ASSERT_GT(well.transfers, 20u);
  uint64_t ended = 0;
  for (const int error : {EIO, ENOSPC}) {
    for (uint64_t index = 0; index < well.transfers; index += testing::kOneIn * (1 + well.transfers / 50)) {
      SCOPED_TRACE(index);
      const toy::ScratchFolder folder;
      const io::Fault fault{.kind = io::FaultKind::fail, .error = error, .from_index = index};
      const Ending ending = train_with(folder.path(), GetParam(), {fault});
      if (ending.error.empty()) {
        // Nothing failed, since how many transfers there are depends a little on what was ready when; or what
        // was read ahead for a step that never came.
        EXPECT_TRUE(ending.transfers <= index || GetParam().victim == Victim::reader) << "nothing was said";
        EXPECT_EQ(ending.durable, kSteps);
      } else {
        EXPECT_NE(ending.error.find(".tier"), std::string::npos) << ending.error;
        EXPECT_NE(ending.error.find(error == EIO ? "EIO" : "ENOSPC"), std::string::npos) << ending.error;
      }
      if (ending.durable > 0) ++ended;
      ASSERT_NO_THROW(expect_resumed(folder.path(), GetParam(), ending, states));
    }
  }
  EXPECT_GT(ended, 20 / testing::kOneIn);
}

// One write that fails is written elsewhere, and no more is seen of it.
TEST_P(EpochFaultLaw, OneFailedWriteIsMadeUpFor) {
  if (GetParam().victim == Victim::reader) GTEST_SKIP() << "it does not write";
  const std::vector<std::vector<std::byte>> states = laws::states_by_step(kSteps, options_for(GetParam()));
  const toy::ScratchFolder whole;
  const uint64_t transfers = train_with(whole.path(), GetParam(), {}).transfers;
  uint64_t made_up = 0;
  for (uint64_t index = 0; index < transfers; index += testing::kOneIn * (1 + transfers / 30)) {
    SCOPED_TRACE(index);
    const toy::ScratchFolder folder;
    const io::Fault fault{.index = index, .kind = io::FaultKind::fail, .operation = io::OpKind::write};
    const Ending ending = train_with(folder.path(), GetParam(), {fault});
    if (ending.error.empty()) ++made_up;
    ASSERT_NO_THROW(expect_resumed(folder.path(), GetParam(), ending, states));
  }
  EXPECT_GT(made_up, 5 / testing::kOneIn);
}

INSTANTIATE_TEST_SUITE_P(Engines, EpochFaultLaw,
                         ::testing::Values(FaultCase{Victim::step_engine},
                                           FaultCase{Victim::step_engine, 0.5}, FaultCase{Victim::reader},
                                           FaultCase{Victim::committer}, FaultCase{Victim::committer, 0.5}),
                         [](const auto& instance) { return name_of(instance.param); });

}  // namespace
}  // namespace terrace
