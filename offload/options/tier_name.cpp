#include <terrace/offload/options/tier_name.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {
namespace {

// A folder whose name begins with a dot is out of sight, and a name of several parts might lead elsewhere.
bool is_folder_name(std::string_view name) {
  return !name.starts_with('.') && name.find("..") == std::string_view::npos &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

}  // namespace

OffloadOptions with_tier_folders(OffloadOptions options) {
  const std::string name = std::exchange(options.tier_name, {});
  if (name.empty()) return options;
  if (!is_folder_name(name)) {
    throw Error(
        ErrorKind::config,
        {"cannot use the tier name", "\"" + name + "\"", "it is not the name of one folder",
         "set " + Option::tier_name + " to a name without \"/\", \"..\" and a \".\" at its beginning"});
  }
  for (std::vector<TierPath>* const paths : {&options.state_paths, &options.parameter_paths})
    for (TierPath& path : *paths) path.path /= name;
  return options;
}

std::vector<std::filesystem::path> tier_folders(const OffloadOptions& options) {
  const OffloadOptions effective = with_tier_folders(options);
  std::vector<std::filesystem::path> folders;
  const auto add = [&](Placement placement, const std::vector<TierPath>& paths) {
    if (placement != Placement::nvme) return;
    for (const TierPath& path : paths)
      if (std::ranges::find(folders, path.path) == folders.end()) folders.push_back(path.path);
  };
  add(effective.states, effective.state_paths);
  add(effective.parameters, effective.parameter_paths);
  add(effective.saved_activations, passing_paths(effective));
  return folders;
}

}  // namespace terrace
