#include <terrace/runtime/checkpoint/checkpoint_values.h>

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::checkpoint_values_test {
namespace {

using namespace checkpoint_tests;

// The values as the reader of whole files gives them.
std::vector<std::vector<float>> all_values(const fs::path& folder, const FlatSpace& space) {
  std::vector<std::vector<float>> values(space.tensor_count());
  read_checkpoint_values(
      folder, space, [](TensorId) { return true; },
      [&](TensorId tensor, uint64_t, std::span<const float> run) {
        auto& all = values[index_of(tensor)];
        all.insert(all.end(), run.begin(), run.end());
      });
  return values;
}

RigOptions rig_options(DataType type) {
  RigOptions options;
  options.type = type;
  options.with_frozen = true;
  options.unused_columns = 250;
  return options;
}

TEST(CheckpointValuesInAnyOrder, GivesAnyPieceOfAnyTensorInAnyOrderToAnyThread) {
  for (const DataType type : {DataType::bf16, DataType::fp32}) {
    const ScratchFolder folder;
    TrainingRig rig(rig_options(type));
    rig.initialise().train(1, 2).save(folder.path(), 2);
    const auto expected = all_values(folder.path(), rig.space);
    CheckpointValues values(folder.path(), rig.space);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 300; ++i) {
          const auto tensor = static_cast<uint32_t>(random() % expected.size());
          const std::vector<float>& all = expected[tensor];
          const uint64_t first = random() % all.size();
          std::vector<float> piece(random() % std::min<uint64_t>(all.size() - first + 1, 10'000));
          values.read(TensorId{tensor}, first, piece);
          EXPECT_TRUE(std::equal(piece.begin(), piece.end(), all.begin() + static_cast<ptrdiff_t>(first)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(CheckpointValuesInAnyOrder, LetsNoDamagedByteThrough) {
  const ScratchFolder folder;
  TrainingRig rig(rig_options(DataType::bf16));
  const fs::path step = rig.initialise().save(folder.path(), 1);
  std::string states = text_of(step / "states.bin");
  states[states.size() / 2] ^= 1;
  write_text(step / "states.bin", states);
  expect_error(ErrorKind::corrupt, {"states.bin", "checksum"}, [&] {
    CheckpointValues values(folder.path(), rig.space);
    for (uint32_t t = 0; t < rig.space.tensor_count(); ++t) {
      std::vector<float> all(rig.specs[t].element_count());
      values.read(TensorId{t}, 0, all);
    }
  });
  write_text(step / "states.bin", states + "x");
  expect_error(ErrorKind::corrupt, {"states.bin"},
               [&] { CheckpointValues values(folder.path(), rig.space); });
}

}  // namespace
}  // namespace terrace::checkpoint_values_test
