#include <terrace/runtime/config/tier_paths.h>

#include <algorithm>
#include <system_error>

namespace terrace {

namespace fs = std::filesystem;

std::vector<fs::path> tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths;
  const auto add = [&](Placement role, const std::vector<fs::path>& more) {
    for (const fs::path& path : more) {
      std::error_code error;
      const auto same = [&](const fs::path& known) {
        return known == path || fs::equivalent(known, path, error);
      };
      if (role == Placement::nvme && std::none_of(paths.begin(), paths.end(), same)) paths.push_back(path);
    }
  };
  add(placement.states, placement.state_paths);
  add(placement.parameters, placement.parameter_paths);
  return paths;
}

}  // namespace terrace
