// The two parts of Muon's step on tiles: the same bits by every processor, the formulas of optimizer.h, and
// nothing else touched.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace::muon_test {
namespace {

constexpr OptimizerSettings kMuon{.kind = OptimizerKind::muon,
                                  .lr = 0.02,
                                  .eps = 1e-7,
                                  .weight_decay = 0.1,
                                  .momentum = 0.95,
                                  .nesterov = true};
constexpr uint64_t kFirst = 64, kCount = 1000;

std::vector<float> drawn(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kTileElements);
  for (float& value : values) value = normal(random);
  return values;
}

struct Tile {
  std::vector<float> record, made = std::vector<float>(kTileElements, -1.0f);
  std::vector<Bf16> parameters = std::vector<Bf16>(kTileElements);
  bool operator==(const Tile& other) const {
    const auto bits = [](const std::vector<Bf16>& values) {
      std::vector<uint16_t> all;
      for (const Bf16 value : values) all.push_back(value.bits);
      return all;
    };
    return record == other.record && made == other.made && bits(parameters) == bits(other.parameters);
  }
};

// A moment alone, and u of it.
Tile after_momentum(InstructionSet set, const OptimizerSettings& settings) {
  Tile tile{drawn(1)};
  const std::vector<float> gradients = drawn(2);
  TileRun run;
  run.layout = {MasterForm::parameter, 1};
  run.record = reinterpret_cast<std::byte*>(tile.record.data());
  run.gradients = reinterpret_cast<const std::byte*>(gradients.data());
  run.parameters = reinterpret_cast<std::byte*>(tile.made.data());
  run.old_parameters = run.parameters;
  run.first_element = kFirst, run.element_count = kCount;
  update_tiles(set, make_muon_steps(settings, 1, 0.5f, 8, 8).momentum, run);
  return tile;
}

// A master alone.
Tile after_weights(InstructionSet set, uint64_t rows, uint64_t columns) {
  Tile tile{drawn(3)};
  std::vector<Bf16> steps;
  for (const float value : drawn(4)) steps.push_back(to_bf16(value));
  TileRun run;
  run.layout = {MasterForm::whole, 0};
  run.record = reinterpret_cast<std::byte*>(tile.record.data());
  run.gradients = reinterpret_cast<const std::byte*>(steps.data());
  run.gradient_type = DataType::bf16;
  run.parameters = reinterpret_cast<std::byte*>(tile.parameters.data());
  run.parameter_type = DataType::bf16;
  run.first_element = kFirst, run.element_count = kCount;
  update_tiles(set, make_muon_steps(kMuon, 1, 0.5f, rows, columns).weights, run);
  return tile;
}

bool is_of_run(size_t element) {
  return element >= kFirst && element < kFirst + kCount;
}

TEST(Muon, UpdatesTheMomentByTheScaledGradientAndMakesUOfBoth) {
  const std::vector<float> moments = drawn(1), gradients = drawn(2);
  for (const bool nesterov : {true, false}) {
    OptimizerSettings settings = kMuon;
    settings.nesterov = nesterov;
    const Tile tile = after_momentum(InstructionSet::scalar, settings);
    for (size_t e = 0; e < kTileElements; ++e) {
      const double g = 0.5 * gradients[e], m = 0.95 * moments[e] + 0.05 * g;
      EXPECT_NEAR(tile.record[e], is_of_run(e) ? m : moments[e], 1e-6) << e;
      const double u = nesterov ? 0.95 * m + 0.05 * g : m;
      EXPECT_NEAR(tile.made[e], is_of_run(e) ? u : -1, 1e-6) << e;
    }
  }
}

TEST(Muon, MovesTheMasterByTheStepOfItsMatrix) {
  const std::vector<float> masters = drawn(3), steps = drawn(4);
  for (const auto& [rows, columns] : {std::pair<uint64_t, uint64_t>{8, 8}, {32, 8}, {8, 32}}) {
    const Tile tile = after_weights(InstructionSet::scalar, rows, columns);
    const double rate = rows == 32 ? 0.04 : 0.02;
    for (size_t e = 0; e < kTileElements; ++e) {
      const double p = masters[e] * (1 - 0.02 * 0.1) - rate * to_float(to_bf16(steps[e]));
      EXPECT_NEAR(tile.record[e], is_of_run(e) ? p : masters[e], 1e-6) << e;
      if (is_of_run(e)) {
        EXPECT_EQ(tile.parameters[e].bits, to_bf16(tile.record[e]).bits) << e;
      }
    }
  }
}

TEST(Muon, GivesTheSameBitsByEveryProcessor) {
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    if (!is_supported(set)) continue;
    EXPECT_TRUE(after_momentum(set, kMuon) == after_momentum(InstructionSet::scalar, kMuon)) << name_of(set);
    EXPECT_TRUE(after_weights(set, 40, 8) == after_weights(InstructionSet::scalar, 40, 8)) << name_of(set);
  }
}

TEST(Muon, HasRatesAsItsTwoAuthorsHaveThem) {
  EXPECT_EQ(muon_rate({}, 100, 400), 1);
  EXPECT_EQ(muon_rate({}, 400, 100), 2);
  EXPECT_DOUBLE_EQ(muon_rate({.matches_adamw = true}, 100, 400), 4);
  EXPECT_DOUBLE_EQ(muon_rate({.matches_adamw = true}, 400, 100), 4);
}

TEST(Muon, SaysWhyNoStepCanBeMade) {
  EXPECT_EQ(why_not(kMuon), "");
  OptimizerSettings settings = kMuon;
  settings.momentum = 1;
  EXPECT_EQ(why_not(settings), "momentum is 1.000000");
  settings = kMuon;
  settings.muon.iterations = 100;
  EXPECT_EQ(why_not(settings), "iterations are 100");
  settings = kMuon;
  settings.muon.b = std::nan("");
  EXPECT_NE(why_not(settings).find("coefficients are 3.444500, "), std::string::npos);
}

}  // namespace
}  // namespace terrace::muon_test
