// Faults of the disk while gradients are on it: each becomes an Error that says where and whose bytes, no
// weight is made of wrong ones, and the last commit leads on.
#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>

#include "offload/gradients/spill_rig.h"
#include "support/fault_engine.h"
#include "support/sanitized.h"

namespace terrace::spill_fault_test {
namespace {

constexpr uint64_t kSteps = 5;

struct Damage {
  const char* name;
  io::Fault fault;
  ErrorKind kind;
  std::vector<std::string> words;
};

io::Fault of_gradients(io::FaultKind kind, io::OpKind operation) {
  io::Fault fault{.kind = kind, .operation = operation};
  fault.file = "grads.tier";
  return fault;
}

std::vector<Damage> damages() {
  const io::Fault failed_write = of_gradients(io::FaultKind::fail, io::OpKind::write);
  const io::Fault failed_read = of_gradients(io::FaultKind::fail, io::OpKind::read);
  io::Fault no_room = failed_write;
  no_room.error = ENOSPC;
  io::Fault part_only = no_room;
  part_only.bytes = 4096;
  io::Fault short_read = failed_read;
  short_read.error = io::kEndOfFile;
  short_read.bytes = 512;
  io::Fault flipped = of_gradients(io::FaultKind::corrupt_read, io::OpKind::read);
  flipped.bytes = 4097;
  io::Fault torn = of_gradients(io::FaultKind::torn_write, io::OpKind::write);
  torn.bytes = 4096;
  const io::Fault lost = of_gradients(io::FaultKind::torn_write, io::OpKind::write);
  return {
      {"a failed write", failed_write, ErrorKind::io, {"cannot write", "gradient of chunk", "EIO"}},
      {"no room", no_room, ErrorKind::io, {"gradient of chunk", "ENOSPC", "are free", "free space"}},
      {"room for a part", part_only, ErrorKind::io, {"gradient of chunk", "ENOSPC", "after 4096 bytes"}},
      {"a failed read", failed_read, ErrorKind::io, {"cannot read", "gradient of chunk", "EIO"}},
      {"a short read", short_read, ErrorKind::io, {"gradient of chunk", "the file ends, after 512 bytes"}},
      {"a flipped bit", flipped, ErrorKind::corrupt, {"chunk", "checksum", "expected"}},
      {"a torn write", torn, ErrorKind::corrupt, {"chunk", "checksum", "expected"}},
      {"a lost write", lost, ErrorKind::corrupt, {"chunk", "checksum", "expected"}}};
}

// The ways of a spilled gradient: into its parameters' place or past them, accumulated or not, whole masters
// or compact ones.
std::vector<CommitCase> cases() {
  std::vector<CommitCase> list = {{.parameters = Placement::nvme},
                                  {.parameters = Placement::cpu, .accumulation = 2},
                                  {.parameters = Placement::nvme, .layout = kCompact},
                                  {.parameters = Placement::none}};
  for (CommitCase& c : list) c.host_budget = spill_all;
  return list;
}

struct Ending {
  std::optional<Error> error;
  uint64_t at = 0;  // the step whose calls threw
};

// Trains and commits after every step.
Ending train(CommitCase c, const std::filesystem::path& folder) {
  Ending ending;
  CommitRig rig(c, folder);
  try {
    rig.offloader->commits().begin(step_info(0));
    for (ending.at = 1; ending.at <= kSteps; ++ending.at) {
      rig.step(ending.at);
      rig.offloader->commits().begin(step_info(ending.at));
    }
    rig.offloader->finish_update();
  } catch (const Error& error) {
    ending.error = error;
  }
  return ending;
}

void expect_told(const Damage& damage, const Error& error) {
  EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(damage.kind)) << error.what();
  const ErrorParts& parts = error.parts();
  EXPECT_FALSE(parts.what_failed.empty() || parts.reason.empty() || parts.advice.empty()) << error.what();
  EXPECT_TRUE(parts.subject.in(Door::cpp).ends_with("/terrace-tier/grads.tier")) << error.what();
  const std::string text = error.what();
  EXPECT_NE(text.find("offset"), std::string::npos) << text;
  for (const std::string& word : damage.words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

// What a run without faults takes up and goes on from.
void expect_to_lead_on(CommitCase c, const std::filesystem::path& folder, uint64_t failed_at,
                       const std::vector<std::vector<std::byte>>& expected) {
  c.decorate = nullptr;
  c.start = TierStart::resume;
  CommitRig rig(c, folder);
  const uint64_t last = step_of(rig.offloader->commits().taken_up_info());
  ASSERT_LT(last, failed_at);
  EXPECT_GE(last + 2, failed_at) << "a step that was whole is lost";
  EXPECT_EQ(rig.state(), expected[last]);
  for (uint64_t step = last + 1; step <= kSteps; ++step) rig.step(step);
  EXPECT_EQ(rig.state(), expected[kSteps]);
}

TEST(SpillFaults, NameFileOffsetAndChunkAndLeaveTheLastCommitWhole) {
  uint64_t runs = 0;  // early and late in them, by turns
  for (CommitCase c : cases()) {
    CommitCase held = c;
    held.host_budget = spill_nothing;
    const std::vector<std::vector<std::byte>> expected = states_without_commits(held, kSteps);
    for (const UpdateMode mode : kUpdateModes) {
      if (!may_run(c, mode)) continue;
      c.mode = mode;
      GradientRequests requests;
      c.decorate = requests.decorator();
      const ScratchFolder clean;
      ASSERT_FALSE(train(c, clean.path()).error);
      ++runs;  // each damage both ways
      for (const Damage& damage : damages()) {
        const bool reads = damage.fault.operation == io::OpKind::read;
        const uint64_t count = reads ? requests.totals().reads : requests.totals().writes;
        const uint64_t index = runs++ % 2 == 0 ? count / 3 : count - 1;
        if (runs % testing::kOneIn != 0) continue;
        SCOPED_TRACE(fmt::format("{}, {} at {}", text_of(c), damage.name, index));
        io::Fault fault = damage.fault;
        fault.index = index;
        io::FaultPlan plan({fault});
        CommitCase faulty = c;
        faulty.decorate = [&plan](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
          return std::make_unique<io::FaultEngine>(std::move(engine), plan);
        };
        const ScratchFolder folder;
        const Ending ending = train(faulty, folder.path());
        ASSERT_EQ(plan.faults_done(), 1u);
        ASSERT_TRUE(ending.error) << "nobody noticed";
        expect_told(damage, *ending.error);
        expect_to_lead_on(c, folder.path(), ending.at, expected);
      }
    }
  }
}

// What was to be read behind it is not: whoever waits for it learns why, and nobody sees what is there
// instead.
TEST(SpillFaults, AFetchBehindAnUpdateThatFailedFailsWithIt) {
  CommitCase c{.parameters = Placement::nvme, .durable = false, .mode = UpdateMode::next_forward};
  c.host_budget = spill_all;
  io::Fault fault = of_gradients(io::FaultKind::fail, io::OpKind::read);
  fault.index = 0;
  io::FaultPlan plan({fault});
  c.decorate = [&plan](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return std::make_unique<io::FaultEngine>(std::move(engine), plan);
  };
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.step(1);
  rig.offloader->begin_step();
  const std::vector<TensorId> first = {TensorId{0}};
  try {
    const Lease lease(*rig.offloader, "mb0/embed/forward", first, UseKind::forward);
    FAIL() << "parameters of before the update are used";
  } catch (const Error& error) {
    expect_told({"", {}, ErrorKind::io, {"cannot read", "gradient of chunk 0", "EIO"}}, error);
  }
}

// From one moment on, as disks fill: everything that is written to the file fails, and the run ends once.
TEST(SpillFaults, ADiskThatIsFullEndsTheRunOnce) {
  for (CommitCase c : cases()) {
    for (const UpdateMode mode : kUpdateModes) {
      if (!may_run(c, mode)) continue;
      c.mode = mode;
      CommitCase held = c;
      held.host_budget = spill_nothing;
      const std::vector<std::vector<std::byte>> expected = states_without_commits(held, kSteps);
      GradientRequests requests;
      c.decorate = requests.decorator();
      const ScratchFolder clean;
      ASSERT_FALSE(train(c, clean.path()).error);
      SCOPED_TRACE(text_of(c));
      io::Fault full = of_gradients(io::FaultKind::full, io::OpKind::write);
      full.bytes = requests.totals().written_bytes / 2 + 4096;
      io::FaultPlan plan({full});
      CommitCase faulty = c;
      faulty.decorate = [&plan](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
        return std::make_unique<io::FaultEngine>(std::move(engine), plan);
      };
      const ScratchFolder folder;
      const Ending ending = train(faulty, folder.path());
      ASSERT_TRUE(ending.error);
      EXPECT_EQ(ending.at, kSteps / 2 + 1);
      expect_told({"", {}, ErrorKind::io, {"gradient of chunk", "ENOSPC"}}, *ending.error);
      expect_to_lead_on(c, folder.path(), ending.at, expected);
    }
  }
}

}  // namespace
}  // namespace terrace::spill_fault_test
