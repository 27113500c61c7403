// The values of tensors read from the files of a checkpoint, against those of the run that saved it.
#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::values_test {
namespace {

using namespace checkpoint_tests;

struct Piece {
  uint32_t tensor;
  uint64_t first;
  std::vector<float> values;
  bool operator==(const Piece&) const = default;
};

// Joined, so that runs may be cut differently.
std::vector<Piece> joined(
    const std::function<void(FunctionRef<void(TensorId, uint64_t, std::span<const float>)>)>& all) {
  std::vector<Piece> runs;
  all([&](TensorId tensor, uint64_t first, std::span<const float> values) {
    EXPECT_LE(values.size(), kTileElements);
    if (first == 0) {
      runs.push_back({index_of(tensor), 0, {}});
    } else {
      EXPECT_EQ(runs.back().tensor, index_of(tensor));
      EXPECT_EQ(runs.back().values.size(), first);
    }
    runs.back().values.insert(runs.back().values.end(), values.begin(), values.end());
  });
  return runs;
}

TEST(CheckpointValues, AreThoseOfTheRunThatSavedThem) {
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    for (const bool with_frozen : {false, true}) {
      ScratchFolder folder;
      TrainingRig rig({.type = type, .with_frozen = with_frozen, .chunk_elements = 4 * kTileElements});
      rig.initialise().train(1, 2);
      rig.save(folder.path(), 2);
      const FlatSpace space(rig.specs, kTileElements);  // chunks are not part of a checkpoint
      for (const uint32_t left_out : {UINT32_MAX, 0u, 2u, 5u}) {
        const auto wanted = [&](TensorId tensor) { return index_of(tensor) != left_out; };
        const std::vector<Piece> expected =
            joined([&](auto sink) { rig.offloader->state().export_values(wanted, sink); });
        const std::vector<Piece> found =
            joined([&](auto sink) { read_checkpoint_values(folder.path(), space, wanted, sink); });
        EXPECT_EQ(found.size(), rig.specs.size() - (left_out == UINT32_MAX ? 0 : 1));
        EXPECT_TRUE(found == expected);
        for (const Piece& run : found) EXPECT_EQ(run.values.size(), rig.specs[run.tensor].element_count());
      }
    }
  }
}

TEST(CheckpointValues, OfADamagedOrAnotherCheckpointAreAnError) {
  ScratchFolder folder;
  TrainingRig rig({.with_frozen = true});
  const fs::path step = rig.initialise().save(folder.path(), 0);
  const auto read = [&](const FlatSpace& space) {
    read_checkpoint_values(
        folder.path(), space, [](TensorId) { return true; },
        [](TensorId, uint64_t, std::span<const float>) {});
  };
  EXPECT_NO_THROW(read(rig.space));
  std::vector<TensorSpec> other = rig.specs;
  other[1].name = "another";
  expect_error(ErrorKind::config, {"names, shapes"}, [&] { read(FlatSpace(other, kTileElements)); });
  for (const char* name : {"states.bin", "frozen.bin"}) {
    std::string bytes = text_of(step / name);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_text(step / name, bytes);
    expect_error(ErrorKind::corrupt, {name}, [&] { read(rig.space); });
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_text(step / name, bytes);
  }
}

}  // namespace
}  // namespace terrace::values_test
