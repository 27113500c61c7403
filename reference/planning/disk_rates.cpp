#include <terrace/reference/planning/disk_rates.h>

#include <optional>

#include <terrace/base/error.h>
#include <terrace/runtime/config/tuning/tuning.h>

namespace terrace {
namespace {

std::optional<PathTuning> tuning_of(const std::filesystem::path& folder, const std::filesystem::path& path) {
  std::string why_not;
  try {
    return find_tuning(folder, find_tuned_place(path), why_not);
  } catch (const Error&) {
    return std::nullopt;  // a folder that is not there
  }
}

}  // namespace

void take_tuned_rates(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& paths,
                      MachineRates& rates) {
  if (folder.empty() || paths.empty()) return;
  MachineRates sum;
  for (const std::filesystem::path& path : paths) {
    const std::optional<PathTuning> tuning = tuning_of(folder, path);
    if (!tuning) return;
    sum.disk_read_bytes += tuning->read_bytes_per_second;
    sum.disk_write_bytes += tuning->write_bytes_per_second;
    sum.disk_mixed_bytes += tuning->mixed_bytes_per_second;
    sum.disk_origin = "terrace tune, " + tuning->measured_at;
  }
  rates.disk_read_bytes = sum.disk_read_bytes;
  rates.disk_write_bytes = sum.disk_write_bytes;
  rates.disk_mixed_bytes = sum.disk_mixed_bytes;
  rates.disk_origin = sum.disk_origin;
}

}  // namespace terrace
