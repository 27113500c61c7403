// What a configuration comes to on a machine that is played, where each value says that it is from, and what
// becomes of rates in a plan.
#include <terrace/reference/planning/settle.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/update_side.h>
#include <terrace/runtime/config/tuning/tuning.h>

#include "reference/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace::settle_test {
namespace {

using namespace trainer_tests;
using ::testing::HasSubstr;

constexpr UpdateRates kEven{1e9, 16e9, 0};  // records of Adam and fp32 gradients: 16 bytes each way

// A GPU that computes as the simulated device does.
class PlayedDevice final : public ComputeDevice {
 public:
  explicit PlayedDevice(std::string why_no_file_reads = "") : reason_(std::move(why_no_file_reads)) {}
  ComputeFacts facts() const override { return {.own_memory = ComputeFacts::OwnMemory{kGiB, "played"}}; }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override {
    return simulated_.make_dry_ops(workers);
  }
  std::unique_ptr<Computing> begin(uint64_t bytes, bool strict, Workers& workers) const override {
    ++begun_;
    return simulated_.begin(bytes, strict, workers);
  }
  std::string why_no_file_reads(std::span<const fs::path> folders) const override {
    EXPECT_EQ(folders.size(), 1u);
    return reason_;
  }
  uint32_t begun() const { return begun_; }

 private:
  const SimulatedCompute simulated_;
  const std::string reason_;
  mutable uint32_t begun_ = 0;
};

const ResolvedValue& shown(const TrainConfig& config, std::string_view key) {
  static const ResolvedValue none;
  const auto found = std::ranges::find(config.resolved, key, &ResolvedValue::key);
  return found == config.resolved.end() ? none : *found;
}

// As --print-config has it: "524288, from the tuning in FILE".
std::string line_of(const TrainConfig& config, std::string_view key) {
  return shown(config, key).value + ", " + shown(config, key).origin;
}

constexpr std::string_view kRatio = "zero_optimization.offload_optimizer.ratio";
constexpr std::string_view kGds = "aio.use_gds";

// With parameters or states on nvme in this folder, and what is given beside that.
TrainConfig on_nvme(const fs::path& folder, const char* role, std::vector<ConfigOverride> more = {}) {
  const std::string section = fmt::format("zero_optimization.{}.", role);
  more.push_back({section + "device", "nvme", "a test"});
  more.push_back({section + "nvme_path", folder.string(), "a test"});
  return default_train_config(more);
}

// --- Where it runs ---

TEST(Settle, SaysWhichDeviceAutoComesTo) {
  const auto device = [](const char* asked, const ComputeDevice* compute) {
    const std::vector<ConfigOverride> flags = {{"terrace.device", asked, "--device"}};
    MemoryLog log;
    const TrainConfig config = settle(default_train_config(flags), {.compute = compute}, log);
    EXPECT_NE(config.terrace.device, DeviceChoice::automatic);
    EXPECT_TRUE(log.lines().empty());
    return line_of(config, "terrace.device");
  };
  const PlayedDevice gpu;
  EXPECT_EQ(device("auto", &gpu), "\"cuda\", --device, found on this machine");
  EXPECT_EQ(device("auto", nullptr), "\"simulated\", --device, found on this machine");
  EXPECT_EQ(device("cuda", &gpu), "\"cuda\", --device");
}

TEST(Settle, LeavesAloneWhatTheConfigurationSays) {
  const TrainConfig resolved = default_train_config();
  const PlayedDevice gpu;
  MemoryLog log;
  const TrainConfig config = settle(resolved, {.tuning = "/nowhere", .compute = &gpu}, log);
  EXPECT_EQ(config_table(config), config_table(resolved));
  EXPECT_TRUE(log.lines().empty());
  EXPECT_EQ(gpu.begun(), 0u);
}

// --- What was tuned ---

class SettledIo : public ::testing::Test {
 protected:
  SettledIo() { remember(disk_.path()); }

  static PathTuning tuned(const fs::path& folder) {
    return {find_tuned_place(folder),
            "2026-01-31T12:00:00Z",
            io::EngineKind::libaio,
            524288,
            16,
            2,
            3.25e9,
            2.5e9,
            2.875e9};
  }
  void remember(const fs::path& folder, double rate = 2.875e9, uint64_t block_bytes = 524288,
                uint32_t depth = 16) {
    PathTuning tuning = tuned(folder);
    tuning.mixed_bytes_per_second = rate;
    tuning.block_bytes = block_bytes;
    tuning.queue_depth = depth;
    save_tuning(cache(), tuning);
  }
  fs::path cache() const { return home_ / "below" / "terrace"; }
  std::string file_of(const ScratchFolder& disk) const {
    return tuning_file(cache(), find_tuned_place(disk.path())).string();
  }
  TrainConfig settled(const TrainConfig& config) { return settle(config, {.tuning = cache()}, log_); }
  TrainConfig states_on(std::vector<ConfigOverride> more = {}) const {
    return on_nvme(disk_.path(), "offload_optimizer", std::move(more));
  }

  ScratchFolder home_;
  ScratchFolder disk_;
  ScratchFolder other_disk_;
  MemoryLog log_;
};

TEST_F(SettledIo, IsWhatWasTunedWhereTheConfigurationIsSilent) {
  const TrainConfig config = settled(states_on({{"aio.queue_depth", "4", "ds.json:2:3"}}));
  EXPECT_EQ(config.aio.block_bytes, 524288u);
  EXPECT_EQ(config.aio.queue_depth, 4u);
  EXPECT_FALSE(config.aio.thread_count.has_value());         // of the threads engine only
  EXPECT_EQ(config.terrace.engine, io::EngineKind::libaio);  // not what would be chosen
  EXPECT_EQ(config.placement.measured_rates.at(disk_.path()), 2.875e9);
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_EQ(log_.lines()[0].text,
            "measured by `terrace tune` on 2026-01-31T12:00:00Z: " + disk_.path().string() +
                " 2.88 GB/s; terrace.engine libaio, aio.block_size 524288");
  EXPECT_EQ(line_of(config, "aio.block_size"), "524288, from the tuning in " + file_of(disk_));
  EXPECT_EQ(line_of(config, "terrace.engine"), "\"libaio\", from the tuning in " + file_of(disk_));
  EXPECT_EQ(line_of(config, "aio.queue_depth"), "4, ds.json:2:3");
  EXPECT_EQ(line_of(config, "aio.intra_op_parallelism"), "null, default");
}

TEST_F(SettledIo, LeavesSettingsToTheEngineThatWasAskedForInstead) {
  const TrainConfig config = settled(states_on({{"terrace.engine", "threads", "--engine"}}));
  EXPECT_EQ(config.terrace.engine, io::EngineKind::threads);
  EXPECT_EQ(line_of(config, "terrace.engine"), "\"threads\", --engine");
  EXPECT_FALSE(config.aio.block_bytes.has_value());
  EXPECT_EQ(config.placement.measured_rates.size(), 1u);
}

TEST_F(SettledIo, TakesRatesButNoSettingsWhenAPathWasNotMeasured) {
  TrainConfig both = states_on();
  both.placement.state_paths.push_back(other_disk_.path());
  TrainConfig config = settled(both);
  EXPECT_FALSE(config.aio.block_bytes.has_value());
  EXPECT_EQ(line_of(config, "aio.block_size"), "null, default");
  EXPECT_EQ(config.placement.measured_rates.size(), 1u);
  EXPECT_EQ(measured_rate(config.placement, both.placement.state_paths), 0);
  remember(other_disk_.path(), 1e9, 4096, 8);
  config = settled(both);
  EXPECT_EQ(config.aio.block_bytes, 524288u);  // of the faster one
  EXPECT_EQ(config.aio.queue_depth, 24u);      // of both together
  EXPECT_EQ(shown(config, "aio.queue_depth").origin,
            "from the tuning in " + file_of(disk_) + ", " + file_of(other_disk_));
  EXPECT_EQ(measured_rate(config.placement, both.placement.state_paths), 3.875e9);
}

TEST_F(SettledIo, IsNotOfAFileThatIsDamagedAndOneWarningSaysSo) {
  std::ofstream(tuning_file(cache(), find_tuned_place(disk_.path()))) << "{";
  const TrainConfig config = settled(states_on());
  EXPECT_FALSE(config.aio.block_bytes.has_value());
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_EQ(log_.lines()[0].level, LogLevel::warning);
  EXPECT_THAT(log_.lines()[0].text, HasSubstr("is not used"));
}

TEST_F(SettledIo, IsTheEnginesOwnWhereNothingWasMeasured) {
  TrainConfig elsewhere = states_on();
  elsewhere.placement.state_paths = {other_disk_.path(), disk_ / "nowhere"};
  EXPECT_FALSE(settled(elsewhere).aio.block_bytes.has_value());
  EXPECT_FALSE(settle(states_on(), {}, log_).aio.block_bytes.has_value());
  // Nor of a path that has nothing on it.
  TrainConfig in_host = states_on();
  in_host.placement.states = Placement::cpu;
  EXPECT_TRUE(settled(in_host).placement.measured_rates.empty());
  EXPECT_TRUE(log_.lines().empty());
}

// --- Who reads parameters ---

// What was asked for, and what it comes to.
TrainConfig reading(const char* wanted, const ComputeDevice* device, Log& log) {
  const TrainConfig config = settle(on_nvme("/mnt/nvme", "offload_param",
                                            {{"aio.use_gds", wanted, "a test"},
                                             {"terrace.device", "auto", "a test"},
                                             {"terrace.verify_checksums", "false", "a test"}}),
                                    {.compute = device}, log);
  EXPECT_EQ(offload_options(config, {}).reads_past_host, config.aio.file_reads == FileReads::on);
  return config;
}

TEST(SettledFileReads, AreTheDevicesWhereItCan) {
  MemoryLog log;
  const PlayedDevice gpu;
  EXPECT_EQ(reading("true", &gpu, log).aio.file_reads, FileReads::on);
  EXPECT_EQ(reading("false", &gpu, log).aio.file_reads, FileReads::off);
  const TrainConfig config = reading("auto", &gpu, log);
  EXPECT_EQ(config.aio.file_reads, FileReads::on);
  EXPECT_EQ(line_of(config, kGds), "true, auto (a test), found on this machine");
  EXPECT_TRUE(log.lines().empty());
}

TEST(SettledFileReads, GoThroughHostMemoryWithOneWarningWhereTheyMayAndHaveTo) {
  MemoryLog log;
  const PlayedDevice gpu("cannot load cuFile");
  const TrainConfig config = reading("auto", &gpu, log);
  EXPECT_EQ(config.aio.file_reads, FileReads::off);
  EXPECT_EQ(line_of(config, kGds), "false, auto (a test), found on this machine");
  EXPECT_EQ(shown(config, kGds).note, "cannot load cuFile");
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_THAT(log.lines()[0].text, HasSubstr("aio.use_gds is auto"));
  EXPECT_THAT(log.lines()[0].text, HasSubstr("cannot load cuFile"));
  EXPECT_EQ(reading("auto", nullptr, log).aio.file_reads, FileReads::off);  // on the simulated device
}

TEST(SettledFileReads, AreAnErrorWhereTheyAreWantedAndCannotBe) {
  MemoryLog log;
  const PlayedDevice gpu("cannot load cuFile");
  terrace::testing::expect_error(ErrorKind::config, {"aio.use_gds", "cannot load cuFile"},
                                 [&] { reading("true", &gpu, log); });
  terrace::testing::expect_error(ErrorKind::config, {"aio.use_gds", "only a GPU"},
                                 [&] { reading("true", nullptr, log); });
}

TEST(SettledFileReads, AreNotLookedForWhereParametersAreNotOnNvme) {
  for (const FileReads wanted : {FileReads::on, FileReads::automatic}) {
    MemoryLog log;
    const PlayedDevice gpu("cannot load cuFile");
    RunOptions run;
    run.parameters = "cpu";
    TrainConfig config = options_of(run).config;
    config.aio.file_reads = wanted;
    config = settle(config, {.compute = &gpu}, log);
    EXPECT_EQ(config.aio.file_reads, FileReads::off);
    EXPECT_TRUE(log.lines().empty());
  }
}

// --- Who updates ---

RunOptions in_host_memory() {
  RunOptions run;
  run.parameters = "cpu";
  run.ratio = "auto";
  return run;
}

TrainConfig settled(const RunOptions& run) {
  MemoryLog log;
  const TrainConfig config = settle(options_of(run).config, {.compute = run.compute}, log);
  EXPECT_TRUE(log.lines().empty());
  return config;
}

std::string sides_of(const RunOptions& run) {
  TrainerOptions options = options_of(run);
  options.config = settled(run);
  return update_sides_text(options.config, plan_training(options));
}

// As it was found elsewhere.
std::string sides_text(TrainConfig config, const TrainingSetup& setup) {
  config.placement.sides_origin = "rates";
  return update_sides_text(config, setup);
}

TEST(SettledSides, AreMeasuredOnADeviceWithMemoryOfItsOwn) {
  const PlayedDevice gpu;
  RunOptions run = in_host_memory();
  run.compute = &gpu;
  const TrainConfig config = settled(run);
  ASSERT_TRUE(config.placement.update_rates);
  EXPECT_GT(config.placement.update_rates->processor_elements, 0);
  EXPECT_GT(config.placement.update_rates->link_bytes, 0);
  EXPECT_EQ(config.placement.update_rates->nvme_bytes, 0);
  EXPECT_EQ(gpu.begun(), 1u);
  EXPECT_EQ(line_of(config, kRatio), "\"auto\", auto (a test), measured on this machine");
  EXPECT_THAT(shown(config, kRatio).note, HasSubstr("G elements/s, and the link carries"));
  // Where the drives are known, they count.
  const ScratchFolder home, disk;
  run.nvme = disk.path();
  save_tuning(home.path(), {find_tuned_place(disk.path()), "2026-01-31T12:00:00Z", io::EngineKind::threads,
                            524288, 16, 2, 3e9, 2e9, 2.5e9});
  MemoryLog log;
  const TrainConfig tuned = settle(options_of(run).config, {.tuning = home.path(), .compute = &gpu}, log);
  EXPECT_EQ(tuned.placement.update_rates->nvme_bytes, 2.5e9);
  EXPECT_THAT(shown(tuned, kRatio).note, HasSubstr("the drives 2.5 GB/s both ways together"));
}

TEST(SettledSides, AreTheProcessorsWhereThereIsNoOther) {
  EXPECT_EQ(
      sides_of(in_host_memory()),
      "offload_optimizer.ratio is auto: the simulated device computes with the processor's own threads: "
      "the processor updates all");
  RunOptions run = in_host_memory();
  run.update = "next_forward";
  run.update_rates = kEven;  // would be refused
  EXPECT_EQ(sides_of(run),
            "offload_optimizer.ratio is auto: updates run in the next forward, in which the device has no "
            "part: the processor updates all");
  EXPECT_FALSE(settled(run).placement.update_rates);
  EXPECT_EQ(line_of(settled(run), kRatio), "1, auto (a test), because of terrace.update");
  EXPECT_EQ(line_of(settled(in_host_memory()), kRatio), "1, auto (a test), found on this machine");
  run = in_host_memory();
  run.ratio = "0.5";
  EXPECT_EQ(sides_of(run), "");
  run = in_host_memory();
  run.parameters = "";  // nor states
  EXPECT_EQ(sides_of(run), "");
}

TEST(SettledSides, AreTheProcessorsWithMuon) {
  const PlayedDevice gpu;
  TrainConfig config = options_of(in_host_memory()).config;
  config.optimizer.type = OptimizerType::muon;
  MemoryLog log;
  config = settle(config, {.compute = &gpu}, log);
  EXPECT_FALSE(config.placement.update_rates);
  EXPECT_EQ(line_of(config, kRatio), "1, auto (a test), because of optimizer.type");
}

TEST(SettledSides, AreNotTheDevicesWhereMuonHasMatrices) {
  const PlayedDevice gpu;
  RunOptions run;
  run.compute = &gpu;
  TrainerOptions options = options_of(run);
  ASSERT_EQ(options.config.placement.states, Placement::none);
  options.config.optimizer.type = OptimizerType::muon;
  terrace::testing::expect_error(ErrorKind::config,
                                 {"in the memory of a GPU", "place the optimizer states on cpu or nvme"},
                                 [&] { plan_training(options); });
  options.compute = nullptr;
  EXPECT_GT(plan_training(options).plan.memory.matrix_bytes, 0u);
}

// Where a ratio that was asked for is refused.
TEST(SettledSides, AreTheProcessorsWhereTheDeviceHasNoMemoryToTakePart) {
  RunOptions run = in_host_memory();
  run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
  RunOptions half = run;
  half.ratio = "0.5";
  EXPECT_THROW(plan_training(options_of(half)), ShortageError);
  run.update_rates = kEven;
  const TrainingSetup setup = plan_training(options_of(run));
  EXPECT_EQ(setup.plan.memory.device_update_chunks(), 0u);
  EXPECT_FALSE(setup.offload.update_rates);
  EXPECT_EQ(setup.plan.processor_share, 1);
  EXPECT_NE(sides_text(options_of(run).config, setup).find("no memory to take part"), std::string::npos);
  // With room for the lanes it has its part.
  run.device_memory = "16MiB";
  const TrainingSetup roomy = plan_training(options_of(run));
  EXPECT_EQ(roomy.offload.update_rates, kEven);
  EXPECT_NEAR(roomy.plan.processor_share, 0.5, 0.1);
  EXPECT_GT(roomy.plan.memory.device_update_chunks(), 0u);
  // Who updates stands in the plan, chunk by chunk.
  const FlatSpace space(roomy.tensors, roomy.plan.chunk_elements);
  EXPECT_EQ(roomy.plan.memory.device_side, updated_on_device(space, roomy.offload));
  EXPECT_EQ(setup.plan.memory.device_side, std::vector<bool>(space.chunk_count(), false));
  // What is too small without them, too, is told what the processor alone takes.
  run.device_memory = "4KiB";
  half.ratio = "1";
  half.device_memory = run.device_memory;
  const auto needed = [](const RunOptions& asked) -> uint64_t {
    try {
      plan_training(options_of(asked));
    } catch (const ShortageError& shortage) {
      return shortage.tiers().front().needed_bytes;
    }
    return 0;
  };
  EXPECT_EQ(needed(run), needed(half));
}

TEST(SettledSides, AreTheProcessorsWhereTheDrivesAreSlower) {
  const ScratchFolder folder;
  RunOptions run = in_host_memory();
  run.nvme = folder.path();
  run.update_rates = UpdateRates{1e9, 1e12, 24e9};
  const TrainerOptions options = options_of(run);
  const TrainingSetup setup = plan_training(options);
  EXPECT_EQ(setup.plan.memory.device_update_chunks(), 0u);
  EXPECT_NE(sides_text(options.config, setup).find("the drives are slower"), std::string::npos);
}

}  // namespace
}  // namespace terrace::settle_test
