// The rates of the nvme paths of a run: those that `terrace tune` keeps of each path, taken together.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/reference/planning/machine_rates.h>

namespace terrace {

// Adds the rates of the paths, since they work side by side. Nothing changes unless `folder` has a tuning of
// every path (runtime/config/tuning/tuning.h).
void take_tuned_rates(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& paths,
                      MachineRates& rates);

}  // namespace terrace
