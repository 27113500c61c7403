// Every transfer of a step, a commit and a pinned commit goes through registered files, where there are such.
#include <gtest/gtest.h>

#include <terrace/aio/engine.h>
#include <terrace/aio/engines/engine_decorator.h>

#include "offload/commits/commit_rig.h"

namespace terrace::tiers_registered_files_test {
namespace {

// Adds up, when its engine goes, what went through it since its first registration.
class StatsKeeper final : public io::EngineDecorator {
 public:
  struct Sum {
    uint64_t engines = 0;
    uint64_t pieces = 0;
    uint64_t registered_file_pieces = 0;
  };
  StatsKeeper(std::unique_ptr<io::Engine> base, Sum& sum) : io::EngineDecorator(std::move(base)), sum_(sum) {}
  ~StatsKeeper() override {
    ++sum_.engines;
    sum_.pieces += base().stats().pieces - unregistered_pieces_;
    sum_.registered_file_pieces += base().stats().registered_file_pieces;
  }
  StatsKeeper(const StatsKeeper&) = delete;
  StatsKeeper& operator=(const StatsKeeper&) = delete;

  bool register_file(int fd) override {
    if (std::exchange(has_file_, true) == false) unregistered_pieces_ = base().stats().pieces;
    return base().register_file(fd);
  }

 private:
  Sum& sum_;
  bool has_file_ = false;
  uint64_t unregistered_pieces_ = 0;  // of files that are being made
};

class RegisteredTierFiles : public ::testing::TestWithParam<io::EngineKind> {};

TEST_P(RegisteredTierFiles, CarryEveryTransferOfStepsCommitsAndPinnedCommits) {
  if (!io::probe_engine(GetParam()).works) GTEST_SKIP() << "this engine does not work here";
  StatsKeeper::Sum sum;
  CommitCase c;
  c.parameters = Placement::nvme;
  c.with_frozen = true;
  c.cached_quarters = 1;
  c.engine = GetParam();
  c.decorate = [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<StatsKeeper>(std::move(engine), sum);
  };
  const ScratchFolder one, two;
  std::vector<MemoryLog::Line> lines;
  {
    CommitRig rig(c, {one.path(), two.path()});
    for (uint64_t step = 1; step <= 2; ++step) {
      rig.step(step);
      rig.offloader->commits().begin(step_info(step));
    }
    rig.offloader->commits().finish();
    const std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
    std::vector<std::byte> tiles(commit->record_tile_count() * RecordLayout{}.tile_bytes());
    commit->read_records(0, tiles);
    lines = rig.log.lines();
  }
  EXPECT_EQ(sum.engines, 4u) << "of the step, of parameters, of commits, of the pinned commit";
  EXPECT_GT(sum.pieces, 0u);
  const bool io_uring = GetParam() == io::EngineKind::io_uring;
  EXPECT_EQ(sum.registered_file_pieces, io_uring ? sum.pieces : 0);
  const auto says_so = [](const MemoryLog::Line& line) {
    return line.text.find("tier files are not registered") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(lines, says_so), 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, RegisteredTierFiles,
                         ::testing::ValuesIn(io::engine_kinds().begin(), io::engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::tiers_registered_files_test
