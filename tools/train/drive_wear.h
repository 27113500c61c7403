// What a run writes to its drives, and how long they last.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

// The bytes that a run writes to its drives.
struct DriveWrites {
  uint64_t step_bytes = 0;  // per step, without commits
  double bytes_a_day = 0;   // with commits; 0: unknown
  double days = 0;          // until the endurance is used up; 0: unknown
};
// `endurance_terabytes` is the drives' rated endurance; 0: unknown.
DriveWrites drive_writes(const TrainConfig& config, const PlanPrediction& prediction,
                         double endurance_terabytes);

// Returns a warning that common drives would be worn out within a month, or by the `steps` steps of the run
// itself; empty if they would not, or if the run writes less than `least_share` of their rating. The rating
// is 600 TB written for each TB of the drives, whose size is that of `disk` rounded up to whole TB.
std::string wear_warning(const DriveWrites& writes, std::span<const PathShare> disk, uint64_t steps,
                         double least_share = 0);

}  // namespace terrace
