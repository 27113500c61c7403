// Where the inputs of layers wait for backward changes no bit, and is what budgets have room for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reference/trainer_rig.h"

namespace terrace::activation_offload_test {
namespace {

using trainer_tests::least_host_memory;
using trainer_tests::options_of;
using trainer_tests::RunOptions;
using trainer_tests::TrainerRun;

constexpr uint32_t kLayers = 10;
constexpr uint32_t kEntries = kLayers - 1;  // the last input is used as soon as it is made
constexpr uint64_t kPutBytes = 8 * 32 * sizeof(float);
constexpr uint64_t kEntryBytes = 4096;

RunOptions run_on(const std::filesystem::path& nvme, const std::string& activations) {
  RunOptions run;
  run.nvme = nvme;
  run.parameters = "cpu";
  run.accumulation = "2";
  run.activations = activations;
  run.layers = kLayers;
  return run;
}

std::string least_device_memory(const RunOptions& run) {
  return std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::byte> state;
  OffloadCounters moved;
  MemoryPlan plan;
};

Trained train(const RunOptions& run) {
  TrainerRun trained(run);
  Trained result;
  result.losses = trained.train(3);
  trained.trainer->finish_update();
  result.state = trained.state();
  result.moved = trained.trainer->offloader().report().counters();
  result.plan = trained.trainer->offloader().plan();
  return result;
}

void expect_same(const Trained& expected, const Trained& found) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.state, expected.state);
}

class ActivationOffloadTest : public ::testing::Test {
 protected:
  RunOptions run(const std::string& activations) { return run_on(folder_.path(), activations); }
  const Trained& expected() {
    if (expected_.losses.empty()) expected_ = train(run("none"));
    return expected_;
  }

 private:
  ScratchFolder folder_;
  Trained expected_;
};

TEST_F(ActivationOffloadTest, MovesEveryInputToTheHostWhereItIsToldTo) {
  const Trained found = train(run("cpu"));
  expect_same(expected(), found);
  EXPECT_EQ(found.moved.activation_d2h_bytes, 3 * 2 * kEntries * kPutBytes);
  EXPECT_EQ(found.moved.activation_write_bytes, 0u);
  EXPECT_EQ(expected().moved.activation_d2h_bytes, 0u);
}

TEST_F(ActivationOffloadTest, WritesToNvmeWhatTheHostHasNoRoomFor) {
  RunOptions options = run("nvme");
  const Trained roomy = train(options);
  options.host_memory = least_host_memory(options);
  const Trained tight = train(options);
  expect_same(expected(), roomy);
  expect_same(expected(), tight);
  EXPECT_EQ(roomy.plan.host_activation_entries, kEntries);
  EXPECT_EQ(roomy.moved.activation_write_bytes, 0u);
  EXPECT_EQ(tight.plan.host_activation_entries, 0u);
  EXPECT_EQ(tight.plan.nvme_activation_entries, kEntries);
  EXPECT_EQ(tight.moved.activation_write_bytes, 3 * 2 * kEntries * kEntryBytes);
  EXPECT_EQ(tight.moved.activation_read_bytes,
            3 * 2 * (kEntries - tight.plan.activation_slots) * kEntryBytes);
  EXPECT_EQ(tight.moved.activation_h2d_bytes, 3 * 2 * kEntries * kPutBytes);
}

TEST_F(ActivationOffloadTest, KeepsTheLastInputsOnTheHost) {
  RunOptions options = run("nvme");
  options.host_memory = std::to_string(std::stoull(least_host_memory(options)) + 2 * kEntryBytes);
  const Trained found = train(options);
  expect_same(expected(), found);
  EXPECT_EQ(found.plan.host_activation_entries, 2u);
  EXPECT_EQ(found.moved.activation_write_bytes, 3 * 2 * (kEntries - 2) * kEntryBytes);
}

TEST_F(ActivationOffloadTest, FillsTheDeviceThenTheHostThenNvme) {
  RunOptions options = run("auto");
  const Trained roomy = train(options);
  expect_same(expected(), roomy);
  EXPECT_EQ(roomy.plan.device_activation_entries, kEntries);
  EXPECT_EQ(roomy.moved.activation_d2h_bytes, 0u);

  options.device_memory = least_device_memory(options);
  const Trained on_host = train(options);
  expect_same(expected(), on_host);
  EXPECT_EQ(on_host.plan.device_activation_entries, 0u);
  EXPECT_EQ(on_host.plan.host_activation_entries, kEntries);

  options.host_memory = least_host_memory(options);
  const Trained on_nvme = train(options);
  expect_same(expected(), on_nvme);
  EXPECT_EQ(on_nvme.plan.nvme_activation_entries, kEntries);
}

TEST_F(ActivationOffloadTest, SharesTheEntriesAmongAllThreeTiers) {
  RunOptions options = run("auto");
  const MemoryPlan whole = plan_training(options_of(options)).plan.memory;
  const uint64_t chunks_first = std::min(whole.device_slots_useful, 2 * whole.device_slots_minimum);
  options.device_memory =
      std::to_string(whole.work_bytes + chunks_first * whole.slot_bytes + 3 * kEntryBytes);
  options.host_memory = least_host_memory(options);
  options.host_memory = std::to_string(std::stoull(options.host_memory) + kEntryBytes);
  const Trained found = train(options);
  expect_same(expected(), found);
  EXPECT_EQ(found.plan.device_activation_entries, 3u);
  EXPECT_EQ(found.plan.host_activation_entries, 1u);
  EXPECT_EQ(found.plan.nvme_activation_entries, kEntries - 4);
  EXPECT_EQ(found.moved.activation_d2h_bytes, 3 * 2 * (kEntries - 3) * kPutBytes);
  EXPECT_EQ(found.moved.activation_write_bytes, 3 * 2 * (kEntries - 4) * kEntryBytes);
}

}  // namespace
}  // namespace terrace::activation_offload_test
