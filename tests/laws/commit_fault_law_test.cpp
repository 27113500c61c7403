// Law 3 for commits: whatever any request of a commit does wrong, the training beside it keeps its bits, the
// failure is reported, and what can be resumed is a whole commit: the new one or the one before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "support/enum_values.h"
#include "support/fault_engine.h"

namespace terrace::commit_fault_law_test {
namespace {

struct Ending {
  std::string failure;  // of a commit; empty when none failed
  std::optional<ErrorKind> kind;
  uint64_t requests = 0;  // of the commits
  std::vector<std::byte> state;
};

// Two steps and a commit after each, with these faults in the requests of the commits.
Ending train_with(CommitCase c, const std::filesystem::path& folder, std::vector<io::Fault> faults) {
  io::FaultEngine* faulty = nullptr;
  c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) {
    auto wrapped = std::make_unique<io::FaultEngine>(std::move(engine), faults);
    faulty = wrapped.get();
    return wrapped;
  });
  CommitRig rig(c, folder);
  Ending ending;
  const auto finish = [&] {
    try {
      rig.offloader->commits().finish();
    } catch (const Error& error) {
      ending.failure = error.what();
      ending.kind = error.kind();
    }
  };
  for (uint64_t step = 1; step <= 2; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
    finish();
  }
  ending.requests = faulty->stats().requests;
  rig.step(3);
  ending.state = rig.state();
  return ending;
}

// What the next run takes up: the step, or the Error.
struct Found {
  std::optional<uint64_t> step;
  std::string text;
  std::optional<ErrorKind> kind;
};
Found resume(CommitCase c, const std::filesystem::path& folder,
             const std::vector<std::vector<std::byte>>& expected) {
  c.start = TierStart::resume;
  Found found;
  try {
    CommitRig rig(c, folder);
    found.step = step_of(rig.offloader->commits().taken_up_info());
    EXPECT_EQ(rig.state(), expected[*found.step]);
  } catch (const Error& error) {
    found.text = error.what();
    found.kind = error.kind();
  }
  return found;
}

constexpr auto kModes = testing::enumerator_names<UpdateMode>();

// A mode of the update, and the processor's share of it.
using FaultLawCase = std::pair<UpdateMode, double>;

std::vector<FaultLawCase> commit_cases() {
  std::vector<FaultLawCase> cases;
  for (size_t m = 0; m < kModes.size(); ++m) {
    const auto mode = static_cast<UpdateMode>(m);
    cases.emplace_back(mode, 1);
    if (mode != UpdateMode::next_forward) cases.emplace_back(mode, 0.5);  // which that one cannot have
  }
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<FaultLawCase>& instance) {
  const auto [mode, share] = instance.param;
  return std::string(kModes[static_cast<size_t>(mode)]) +
         (share < 1 ? "_half_on_the_device" : "_by_the_processor");
}

class CommitFaultLaw : public ::testing::TestWithParam<FaultLawCase> {
 protected:
  const CommitCase case_{.parameters = Placement::nvme,
                         .with_frozen = true,
                         .cached_quarters = 3,
                         .mode = GetParam().first,
                         .processor_share = GetParam().second};
  const std::vector<std::vector<std::byte>> expected_ = states_without_commits(case_, 3);

  uint64_t request_count() {
    const ScratchFolder folder;
    return train_with(case_, folder.path(), {}).requests;
  }
};

// From one request on, for longer than any block is tried again.
TEST_P(CommitFaultLaw, AFailedCommitLeavesTheOneBefore) {
  const uint64_t requests = request_count();
  ASSERT_GT(requests, 10u);
  uint64_t failed = 0;
  for (const int error : {EIO, ENOSPC}) {
    for (uint64_t first = 0; first < requests; first += 3) {
      std::vector<io::Fault> faults;
      for (uint64_t index = first; index < first + 1000; ++index)
        faults.push_back({index, io::FaultKind::fail, 0, error});
      const ScratchFolder folder;
      const Ending ending = train_with(case_, folder.path(), faults);
      EXPECT_EQ(ending.state, expected_[3]) << first;
      ASSERT_TRUE(ending.kind) << first;
      ++failed;
      EXPECT_TRUE(ending.kind == ErrorKind::io || ending.kind == ErrorKind::capacity) << ending.failure;
      EXPECT_NE(ending.failure.find(".tier"), std::string::npos) << ending.failure;
      EXPECT_NE(ending.failure.find(error == EIO ? "EIO" : "ENOSPC"), std::string::npos) << ending.failure;
      const Found found = resume(case_, folder.path(), expected_);
      if (found.step) {
        EXPECT_EQ(*found.step, 1u) << first;
      } else {
        EXPECT_EQ(found.kind, ErrorKind::config) << found.text;  // the first commit failed: there is nothing
      }
    }
  }
  EXPECT_GT(failed, 5u);
}

// One bad place on the disk is no reason to lose a commit: the block goes elsewhere.
TEST_P(CommitFaultLaw, ABadSlotCostsNothing) {
  const uint64_t requests = request_count();
  for (uint64_t index = 0; index < requests; index += 2) {
    const ScratchFolder folder;
    const Ending ending = train_with(case_, folder.path(), {{index, io::FaultKind::fail}});
    EXPECT_EQ(ending.failure, "") << index;
    EXPECT_EQ(ending.state, expected_[3]);
    const Found found = resume(case_, folder.path(), expected_);
    ASSERT_TRUE(found.step) << index << ": " << found.text;
    EXPECT_EQ(*found.step, 2u);
  }
}

// A disk that claims what it did not do is found out before a weight is made of it.
TEST_P(CommitFaultLaw, ATornWriteIsFoundWhenTheCommitIsTakenUp) {
  const uint64_t requests = request_count();
  uint64_t corrupt = 0;
  for (uint64_t index = 0; index < requests; index += 2) {
    io::Fault fault{index, io::FaultKind::torn_write};
    fault.bytes = 4096;
    const ScratchFolder folder;
    EXPECT_EQ(train_with(case_, folder.path(), {fault}).failure, "");
    const Found found = resume(case_, folder.path(), expected_);
    if (found.step) continue;  // a record of the first commit, or what was torn is what was there already
    ++corrupt;
    EXPECT_EQ(found.kind, ErrorKind::corrupt) << found.text;
    EXPECT_NE(found.text.find(".tier"), std::string::npos) << found.text;
    EXPECT_NE(found.text.find("chunk"), std::string::npos) << found.text;
  }
  EXPECT_GT(corrupt, 3u);
}

INSTANTIATE_TEST_SUITE_P(Cases, CommitFaultLaw, ::testing::ValuesIn(commit_cases()), name_of);

}  // namespace
}  // namespace terrace::commit_fault_law_test
