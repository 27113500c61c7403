#include "train/drive_wear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/offload/watch/counter_table.h>

#include "text_table.h"

namespace terrace {
namespace {

constexpr double kDaySeconds = 86400;
constexpr double kFewDays = 30;
constexpr double kRatingPerTerabyte = 600;  // terabytes written, as consumer drives are rated

}  // namespace

DriveWrites drive_writes(const TrainConfig& config, const PlanPrediction& prediction,
                         double endurance_terabytes) {
  const OffloadCounters& step = prediction.step;
  DriveWrites writes;
  writes.step_bytes = disk_write_bytes(step) - step.commit_write_bytes;
  if (!prediction.has_times || prediction.step_seconds <= 0) return writes;
  const double steps_a_day = kDaySeconds / prediction.step_seconds;
  double commits_a_day = 0;
  if (config.terrace.commit_every_steps > 0)
    commits_a_day = steps_a_day / static_cast<double>(config.terrace.commit_every_steps);
  if (config.terrace.commit_every_seconds > 0)
    commits_a_day =
        std::max(commits_a_day, kDaySeconds / static_cast<double>(config.terrace.commit_every_seconds));
  writes.bytes_a_day =
      static_cast<double>(writes.step_bytes) * steps_a_day +
      static_cast<double>(prediction.commit_write_bytes) * std::min(commits_a_day, steps_a_day);
  if (writes.bytes_a_day > 0) writes.days = endurance_terabytes * 1e12 / writes.bytes_a_day;
  return writes;
}

std::string wear_warning(const DriveWrites& writes, std::span<const PathShare> disk, uint64_t steps,
                         double least_share) {
  if (writes.step_bytes == 0) return "";
  double terabytes = 0;
  for (const PathShare& share : disk) terabytes += static_cast<double>(share.bytes) * 1e-12;
  const double rating = kRatingPerTerabyte * std::max(1.0, std::ceil(terabytes));
  const double step = static_cast<double>(writes.step_bytes) * 1e-12;
  const double last_steps = rating / step;
  const double last_days = writes.bytes_a_day > 0 ? rating * 1e12 / writes.bytes_a_day : INFINITY;
  const auto wanted = static_cast<double>(steps);
  if ((last_days >= kFewDays && last_steps >= wanted) || wanted < least_share * last_steps) return "";
  const std::string days = last_days < kFewDays ? fmt::format(" or {:.2g} days", last_days) : "";
  return fmt::format(
      "the drives wear out soon: at {:.3g} TB written a step, drives rated for {:.0f} TB last {} steps{}; "
      "use "
      "drives that are rated for more, or give more host memory, which keeps more off the drives",
      step, rating, grouped(static_cast<uint64_t>(std::min(last_steps, 1e15))), days);
}

}  // namespace terrace
