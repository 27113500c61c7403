// A training of a store that ranks divide, beside the same one of a store alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "capi/rank_program.h"
#include "support/scratch_folder.h"

namespace terrace::capi {

inline constexpr uint64_t kSteps = 3;
inline constexpr uint32_t kMicroBatches = 6;

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// The part of a rank.
inline Case case_of(const Case& c, const RankProgram& program, uint32_t rank, uint32_t count) {
  Case mine = c;
  mine.ranks = program.ranks;
  mine.rank = rank, mine.rank_count = count;
  mine.accumulation = kMicroBatches / count;
  return mine;
}

// The state of one rank behind all steps.
inline std::string train_alone(Case c) {
  const ScratchFolder folder;
  c.accumulation = kMicroBatches;
  Training training(c, folder.path());
  for (uint64_t step = 1; step <= kSteps; ++step) training.step(step);
  return bytes_of(training.state());
}

}  // namespace terrace::capi
