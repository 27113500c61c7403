// Law 3 for training with epochs: whatever the disks hold after the power went at any moment of it, the last
// epoch whose commit had ended is taken up, or a later one, and training goes on from it to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/aio/file.h>
#include <terrace/memory/tier_space.h>

#include "laws/durable_toy.h"
#include "power_cut/cut_power.h"
#include "support/sanitized.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using laws::DurableToy;
using laws::DurableToyOptions;
using power_cut::CutCase;
using power_cut::DiskLog;

constexpr uint64_t kSteps = 6;

DurableToyOptions in(const fs::path& root, DurableToyOptions options, bool two_paths, TierStart start) {
  options.paths = {root / "a"};
  if (two_paths) options.paths.push_back(root / "b");
  options.start = start;
  return options;
}

// Commits after these steps; each goes on while the next step is trained.
bool commits_after(uint64_t step) {
  return step != 3;
}

void train_and_commit(const fs::path& root, const DurableToyOptions& options, bool two_paths, DiskLog& log) {
  fs::create_directory(root / "a");
  fs::create_directory(root / "b");
  io::sync_folder(root);
  DurableToy toy(in(root, options, two_paths, TierStart::fresh));
  toy.initialise();
  for (uint64_t step = 1; step <= kSteps; ++step) {
    toy.train(step);
    const bool in_progress = step > 1 && commits_after(step - 1);
    toy.offloader->finish_commit();
    if (in_progress) log.mark(std::to_string(step - 1));
    if (commits_after(step)) toy.begin_commit(step, options.retained_epochs > 0 && step == 2);
  }
  toy.offloader->finish_commit();
  log.mark(std::to_string(kSteps));
}

struct Variant {
  const char* name;
  DurableToyOptions options;
  bool two_paths;
  size_t most;  // disks of one moment
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

class EpochPowerCut : public ::testing::TestWithParam<Variant> {};

TEST_P(EpochPowerCut, IsTakenUpFromTheLastEpochOrALaterOneAndGoesOnToTheSameBits) {
  const Variant& variant = GetParam();
  const std::vector<std::vector<std::byte>> states = laws::states_by_step(kSteps, variant.options);
  const toy::ScratchFolder folder;
  DiskLog log(folder.path());
  train_and_commit(folder.path(), variant.options, variant.two_paths, log);
  uint64_t disks = 0, resumed = 0, fresh = 0;
  power_cut::for_each_cut(log.stop(), 20260109, variant.most, [&](const CutCase& cut, const fs::path& disk) {
    SCOPED_TRACE(cut.words);
    if (::testing::Test::HasFailure() || disks++ % testing::kOneIn != 0)
      return;  // the first failure says enough
    const uint64_t durable = cut.marked.empty() ? 0 : std::stoull(cut.marked);
    const DurableToyOptions options = in(disk, variant.options, variant.two_paths, TierStart::resume);
    const FoundTier found = look_at_tier(options.paths);
    if (!found.whole) {
      ++fresh;
      EXPECT_EQ(durable, 0u) << found.trouble;
      return;
    }
    ++resumed;
    ASSERT_NO_THROW({
      DurableToy toy(options);
      const uint64_t step = toy.taken_up_step();
      ASSERT_GE(step, durable);
      ASSERT_LE(step, kSteps);
      ASSERT_TRUE(toy.state() == states[step]) << "taken up at step " << step;
      for (uint64_t next = step + 1; next <= kSteps; ++next) {
        toy.train(next);
        if (next == step + 1) toy.begin_commit(next);
      }
      ASSERT_TRUE(toy.state() == states[kSteps]) << "gone on from step " << step;
    });
  });
  EXPECT_GT(resumed, 100 / testing::kOneIn);
  EXPECT_GT(fresh, 10 / testing::kOneIn);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, EpochPowerCut,
    ::testing::Values(
        Variant{"everything_streamed", {}, false, 2},
        Variant{"half_the_records_cached_parameters_in_dram",
                {.parameters = Placement::cpu, .with_frozen = false, .cached_records = 8},
                false,
                2},
        Variant{"two_paths_a_retained_epoch_and_half_updated_on_the_device",
                {.parameters = Placement::nvme,
                 .with_frozen = true,
                 .cached_records = 4,
                 .retained_epochs = 1,
                 .processor_share = 0.5},
                true,
                2},
        Variant{"compact_state_parameters_on_nvme",
                {.parameters = Placement::nvme, .cached_records = 4, .layout = {MasterForm::remainder}},
                false,
                2},
        Variant{"compact_state_parameters_in_dram_all_updated_on_the_device",
                {.parameters = Placement::cpu,
                 .with_frozen = false,
                 .cached_records = 8,
                 .layout = {MasterForm::remainder},
                 .processor_share = 0},
                false,
                2},
        Variant{"compact_state_parameters_on_the_device",
                {.parameters = Placement::none, .with_frozen = false, .layout = {MasterForm::remainder}},
                true,
                2}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace terrace
