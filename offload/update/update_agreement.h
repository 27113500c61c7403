// What all ranks have to give an update alike. Each rank updates its own share, so that another learning rate
// on one of them would train a part of the model with it, and nothing else would show that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <terrace/base/error.h>
#include <terrace/offload/update/update_settings.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

// The members of OptimizerSettings.
inline constexpr size_t kOptimizerSettings = 16;

// What a rank says of its update, in one ballot.
struct UpdateBallot {
  GradientNorm norm;
  double lr = 0;  // of the first group, for the error's words
  double clip_norm = 0;
  double loss_scale = 1;
  uint64_t step = 0;
  std::array<uint64_t, kOptimizerSettings> settings{};  // of each member a checksum over all groups
  uint64_t written = 0;                                 // TrainingState::take_sum_of_written
  // Among the ranks of all parts of a model: those of this rank's part cannot update together.
  bool part_differs = false;
};

UpdateBallot ballot_of(const GradientNorm& norm, const UpdateSettings& settings, uint64_t written);

// `all`: of every rank, in their order. Why they cannot update together, where they are not the same in all
// but their norms: an Error(config) that names the differences, the same on every rank.
std::optional<Error> difference_of(std::span<const UpdateBallot> all);

}  // namespace terrace
