#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::checkpoint_resume_test {
namespace {

using namespace checkpoint_tests;

struct Break {
  std::string name;
  RigOptions before;
  RigOptions after;
};

void PrintTo(const Break& value, std::ostream* stream) {
  *stream << value.name;
}

class Resume : public ::testing::TestWithParam<Break> {};

TEST_P(Resume, TenStepsAndTenMoreAreTwentyWithoutABreak) {
  const auto& [name, before, after] = GetParam();
  const ScratchFolder folder;
  {
    TrainingRig first(before);
    first.initialise().train(1, 10).save(folder.path(), 10);
  }
  TrainingRig second(after);
  const CheckpointInfo info = second.load(folder.path());
  EXPECT_EQ(info.step, 10u);
  second.train(info.step + 1, 20);
  TrainingRig unbroken(after);
  unbroken.initialise().train(1, 20);
  EXPECT_TRUE(second.state() == unbroken.state());
}

RigOptions placed(Placement parameters, Placement states, uint64_t chunk_tiles, bool tight) {
  RigOptions options;
  options.parameters = parameters;
  options.states = states;
  options.chunk_elements = chunk_tiles * kTileElements;
  options.tight = tight;
  options.unused_columns = 250;
  return options;
}

std::vector<Break> breaks() {
  using enum Placement;
  std::vector<Break> list;
  for (const Placement placement : {none, cpu, nvme}) {
    const RigOptions same = placed(placement, placement, 4, true);
    list.push_back({fmt::format("{}_unchanged", name_of(placement)), same, same});
  }
  list.push_back({"nvme_to_none", placed(nvme, nvme, 1, true), placed(none, none, 8, false)});
  list.push_back({"none_to_nvme", placed(none, none, 8, false), placed(nvme, nvme, 3, true)});
  list.push_back({"cpu_to_mixed", placed(cpu, cpu, 32, true), placed(cpu, nvme, 2, false)});
  list.push_back({"mixed_to_cpu", placed(nvme, cpu, 5, false), placed(cpu, cpu, 1, false)});
  for (Break pair : {list[3], list[4], list[5]}) {
    pair.before.accumulation = pair.after.accumulation = 3;
    pair.name += "_accumulating";
    list.push_back(pair);
  }
  for (Break pair : {list[3], list[4], list[5], list[6]}) {
    pair.before.with_frozen = pair.after.with_frozen = true;
    pair.name += "_frozen";
    list.push_back(pair);
  }
  for (Break pair : {list[4], list[6]}) {
    pair.before.type = pair.after.type = DataType::fp32;
    pair.name += "_fp32";
    list.push_back(pair);
  }
  // Tensors of the program lie apart from the others, so each is looked up by its name.
  RigOptions apart = placed(cpu, cpu, 2, false);
  apart.gradients = GradientOrigin::handed_over;
  RigOptions together = apart;
  apart.callers = true;
  for (const bool with_frozen : {false, true}) {
    apart.with_frozen = together.with_frozen = with_frozen;
    const std::string end = with_frozen ? "_frozen" : "";
    list.push_back({"together_to_apart" + end, together, apart});
    list.push_back({"apart_to_together" + end, apart, together});
  }
  const RecordLayout compact{MasterForm::remainder};
  RigOptions halves = placed(nvme, nvme, 2, true);
  halves.layout = compact;
  list.push_back({"compact_to_plain", halves, placed(cpu, cpu, 1, false)});
  list.push_back({"plain_to_compact", placed(cpu, nvme, 4, true), halves});
  RigOptions codes = placed(nvme, nvme, 2, true);
  codes.layout = {MasterForm::whole, 2, MomentType::int8};
  RigOptions coded_halves = codes;
  coded_halves.layout.master = MasterForm::remainder;
  list.push_back({"codes_to_compact_codes", codes, coded_halves});
  RigOptions codes_on_cpu = placed(cpu, cpu, 1, false);
  codes_on_cpu.layout = codes.layout;
  list.push_back({"compact_codes_to_codes", coded_halves, codes_on_cpu});
  RigOptions lion = placed(cpu, nvme, 2, true);
  lion.kind = OptimizerKind::lion;
  lion.layout = {MasterForm::whole, 1, MomentType::bf16};
  RigOptions lion_halves = lion;
  lion_halves.layout.master = MasterForm::remainder;
  list.push_back({"lion_with_bf16_moments", lion, lion});
  RigOptions coded_lion = lion, coded_lion_halves = lion_halves;
  coded_lion.layout.moment_type = coded_lion_halves.layout.moment_type = MomentType::int8;
  list.push_back({"lion_with_codes_to_compact", coded_lion, coded_lion_halves});
  list.push_back({"lion_to_compact", lion, lion_halves});
  list.push_back({"lion_from_compact", lion_halves, lion});
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, Resume, ::testing::ValuesIn(breaks()),
                         [](const auto& each) { return each.param.name; });

TEST(Checkpoint, TakesOverATrainerThatHasAlreadyTrainedSomethingElse) {
  for (const Placement placement : {Placement::none, Placement::cpu, Placement::nvme}) {
    RigOptions options = placed(placement, placement, 2, false);
    options.with_frozen = true;
    const ScratchFolder folder;
    TrainingRig rig(options);
    rig.initialise().train(1, 2);
    const std::vector<std::byte> saved = rig.state();
    rig.save(folder.path(), 2);
    rig.train(3, 4);
    const std::vector<std::byte> later = rig.state();
    EXPECT_FALSE(rig.state() == saved);
    rig.load(folder.path());
    EXPECT_TRUE(rig.state() == saved);
    EXPECT_TRUE(rig.train(3, 4).state() == later);
  }
}

TEST(Checkpoint, TellsWhatItIsOfWithoutReadingTheState) {
  const ScratchFolder folder;
  TrainingRig rig(RigOptions{});
  const fs::path path = rig.initialise().save(folder.path() / "runs" / "a", 20);
  EXPECT_EQ(path, folder.path() / "runs" / "a" / "step-00000020");
  fs::remove(path / "states.bin");
  for (const fs::path& asked :
       {path, path / "", folder.path() / "runs" / "a", folder.path() / "runs" / "a" / ""}) {
    const CheckpointInfo info = read_checkpoint_info(asked);
    EXPECT_EQ(info.step, 20u);
    EXPECT_EQ(info.model, "toy");
    EXPECT_EQ(info.tensor_hash, hash_of_tensors(rig.space));
    EXPECT_EQ(info.type, DataType::bf16);
    EXPECT_EQ(info.seed, 0xfedcba9876543210);
    EXPECT_EQ(info.position, rig.info(20).position);
  }
}

TEST(Checkpoint, ResumesTheLatestUnlessAStepIsNamed) {
  const ScratchFolder folder;
  TrainingRig rig(RigOptions{});
  rig.initialise().train(1, 1).save(folder.path(), 1);
  const std::vector<std::byte> at_one = rig.state();
  rig.train(2, 2).save(folder.path(), 2);
  const std::vector<std::byte> at_two = rig.state();
  EXPECT_EQ(rig.load(folder.path() / "step-00000001").step, 1u);
  EXPECT_TRUE(rig.state() == at_one);
  EXPECT_EQ(rig.load(folder.path()).step, 2u);
  EXPECT_TRUE(rig.state() == at_two);
}

TEST(Checkpoint, HoldsTheRecordsInFlatOrderAndNothingElse) {
  const ScratchFolder folder;
  RigOptions options;
  options.with_frozen = true;
  TrainingRig rig(options);
  const fs::path path = rig.initialise().train(1, 1).save(folder.path(), 1);
  std::string records, frozen;
  rig.offloader->state().export_records([&](std::span<const std::byte> tiles) {
    records.append(reinterpret_cast<const char*>(tiles.data()), tiles.size());
  });
  rig.offloader->state().export_frozen([&](std::span<const std::byte> parameters) {
    frozen.append(reinterpret_cast<const char*>(parameters.data()), parameters.size());
  });
  EXPECT_GT(records.size(), 5u * 16 * RecordLayout{}.tile_bytes());
  EXPECT_TRUE(text_of(path / "states.bin") == records);
  EXPECT_TRUE(text_of(path / "frozen.bin") == frozen);
  EXPECT_EQ(text_of(folder.path() / "latest"), "step-00000001\n");
}

TEST(Checkpoint, IsTheSameBytesWhateverThePlacement) {
  const ScratchFolder folder;
  TrainingRig one(placed(Placement::nvme, Placement::nvme, 1, true));
  TrainingRig other(placed(Placement::none, Placement::cpu, 7, false));
  const fs::path first = one.initialise().train(1, 2).save(folder.path() / "one", 2);
  const fs::path second = other.initialise().train(1, 2).save(folder.path() / "other", 2);
  for (const char* file : {"states.bin", "manifest.json"})
    EXPECT_TRUE(text_of(first / file) == text_of(second / file)) << file;
  EXPECT_FALSE(fs::exists(first / "frozen.bin"));
}

// What takes fewer bytes in memory and on nvme is not seen here.
TEST(Checkpoint, IsTheSameBytesOfCompactState) {
  const ScratchFolder folder;
  RigOptions options = placed(Placement::nvme, Placement::nvme, 2, true);
  const fs::path plain = TrainingRig(options).initialise().train(1, 2).save(folder.path() / "plain", 2);
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    options.parameters = parameters;
    options.layout.master = MasterForm::remainder;
    const fs::path compact =
        TrainingRig(options).initialise().train(1, 2).save(folder.path() / name_of(parameters), 2);
    for (const char* file : {"states.bin", "manifest.json"})
      EXPECT_TRUE(text_of(compact / file) == text_of(plain / file)) << file << " " << name_of(parameters);
  }
}

TEST(Checkpoint, OfOtherMomentsIsRefusedBeforeAnythingChanges) {
  const ScratchFolder folder;
  RigOptions options;
  options.kind = OptimizerKind::lion;
  options.layout = {MasterForm::whole, 1};
  TrainingRig(options).initialise().train(1, 1).save(folder.path(), 1);
  RigOptions adam;
  adam.layout.master = MasterForm::remainder;
  TrainingRig rig(adam);
  rig.initialise();
  const std::vector<std::byte> before = rig.state();
  expect_error(ErrorKind::config, {"1 moment in fp32", "2 moments in fp32", "optimizer"},
               [&] { rig.load(folder.path()); });
  EXPECT_EQ(rig.state(), before);
}

TEST(Checkpoint, IdentifiesTensorsByNameShapeTypeTrainabilityAndOrder) {
  const std::vector<TensorSpec> list = toy::tensors(DataType::bf16, true);
  const auto hash = [](const std::vector<TensorSpec>& specs, uint64_t tiles = 1) {
    return hash_of_tensors(FlatSpace(specs, tiles * kTileElements));
  };
  EXPECT_EQ(hash(list), hash(list, 9));
  // Checkpoints that exist hold such hashes: see docs/checkpoint_format.md.
  EXPECT_EQ(hash({{"a", {2, 3}, DataType::bf16, true, 0, 1}, {"b", {1}, DataType::bf16, false, 5, 2}}),
            0x490be9e1161dbbd2u);
  std::vector<std::vector<TensorSpec>> others(6, list);
  others[0][1].name = "bias9";
  others[1][2].shape = {301, 100};
  others[2][3].type = DataType::fp32;
  others[3][4].trainable = false;
  std::swap(others[4][1], others[4][2]);
  others[5].pop_back();
  for (const std::vector<TensorSpec>& other : others) EXPECT_NE(hash(other), hash(list));
}

}  // namespace
}  // namespace terrace::checkpoint_resume_test
