// The rates of the nvme paths of a run: what `terrace tune` remembers of each, taken together.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/runtime/train/planning/machine_rates.h>

namespace terrace {

// Paths work side by side, so their rates add up. Nothing changes unless every path is remembered in `folder`
// (runtime/config/tuning/tuning.h).
void take_tuned_rates(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& paths,
                      MachineRates& rates);

}  // namespace terrace
