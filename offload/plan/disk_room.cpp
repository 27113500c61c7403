#include <terrace/offload/plan/disk_room.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/disk_plan.h>

namespace terrace {
namespace {

// Returns the free bytes of the paths' file systems, each counted once, plus those of an existing tier, which
// the run takes up or removes. Returns nothing if a file system cannot be asked.
std::optional<uint64_t> room_at(const std::vector<PathShare>& shares) {
  std::vector<dev_t> devices;
  uint64_t bytes = 0;
  for (const PathShare& share : shares) {
    struct stat folder;
    if (stat(share.path.c_str(), &folder) != 0) return std::nullopt;
    bytes += TierFolder::bytes_at(share.path);
    if (std::ranges::find(devices, folder.st_dev) != devices.end()) continue;
    devices.push_back(folder.st_dev);
    try {
      bytes += io::free_bytes_at(share.path);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string advice_for(const MemoryPlan& plan, const OffloadOptions& options, uint64_t missing_bytes,
                       bool one_path) {
  std::string advice = fmt::format("free {} there, or set TierPath::path to {}", format_bytes(missing_bytes),
                                   one_path ? "a larger disk" : "larger disks");
  if (plan.gradient_file_bytes > 0) {
    advice += fmt::format(
        ", or raise OffloadOptions::host_budget_bytes: with {} no gradient is spilled ({} of that)",
        format_bytes(plan.host_holding_bytes), format_bytes(plan.gradient_file_bytes));
  }
  if (plan.activation_file_bytes > 0) {
    advice += fmt::format(", or keep activation checkpoints in memory ({} of that)",
                          format_bytes(plan.activation_file_bytes));
  }
  if (plan.keeps_commits && options.tier_start != TierStart::resume) {
    advice +=
        ", or set OffloadOptions::durable to false, which halves that and gives up resuming after a crash";
  }
  return advice;
}

}  // namespace

void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options) {
  const uint64_t needed = plan.file_bytes();
  if (needed == 0) return;
  const std::vector<PathShare> shares = share_disk(plan, options);
  const std::optional<uint64_t> room = room_at(shares);
  if (!room || needed <= *room) return;
  std::string folders;
  for (const PathShare& share : shares) folders += (folders.empty() ? "" : ", ") + share.path.string();
  const TierShortage nvme{"nvme", *room, needed};
  throw ShortageError({"there is no room for what lives on nvme in", folders,
                       fmt::format("{} bytes ({}) are needed and {} ({}) are free, so that {}", needed,
                                   format_bytes(needed), *room, format_bytes(*room), missing_text(nvme)),
                       advice_for(plan, options, nvme.missing_bytes(), shares.size() == 1)},
                      {nvme});
}

}  // namespace terrace
