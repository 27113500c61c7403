#include <terrace/offload/plan/disk_room.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/disk_plan.h>

namespace terrace {
namespace {

Wording advice_for(const MemoryPlan& plan, const OffloadOptions& options, uint64_t missing_bytes,
                   bool one_path) {
  Wording advice = "free " + format_bytes(missing_bytes) + " there, or set " + Option::nvme_path +
                   (one_path ? " to a larger disk" : " to larger disks");
  if (plan.gradient_file_bytes > 0) {
    advice += ", or raise " + Option::host_budget +
              fmt::format(": with {} no gradient is spilled ({} of that)",
                          format_bytes(plan.host_holding_bytes), format_bytes(plan.gradient_file_bytes));
  }
  if (plan.activation_file_bytes > 0) {
    advice += fmt::format(", or keep activation checkpoints in memory ({} of that)",
                          format_bytes(plan.activation_file_bytes));
  }
  if (plan.keeps_commits && options.tier_start != TierStart::resume) {
    advice += ", or set " + Option::durable +
              " to false, which takes less than half of that and gives up resuming after a crash";
  }
  return advice;
}

}  // namespace

DiskNeed disk_need(const MemoryPlan& plan, const OffloadOptions& options, uint32_t host) {
  DiskNeed need{.needed = plan.file_bytes()};
  if (need.needed == 0) return need;
  std::vector<uint64_t> devices;
  for (const PathShare& share : share_disk(plan, options)) {
    struct stat folder;
    if (stat(share.path.c_str(), &folder) != 0) return {};
    // What lies beside a run's own folder stays until the run has a commit.
    need.held += TierFolder::bytes_at(share.path / options.tier_name);
    if (std::ranges::find(devices, folder.st_dev) != devices.end()) continue;
    devices.push_back(folder.st_dev);
    try {
      need.free += io::free_bytes_at(share.path);
    } catch (const Error&) {
      return {};
    }
  }
  std::ranges::sort(devices);
  devices.push_back(host);
  need.drives = checksum_of(std::as_bytes(std::span(devices)));
  return need;
}

void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options) {
  const DiskNeed own = disk_need(plan, options, 0);
  require_disk_room(plan, options, own, {&own, 1});
}

void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options, const DiskNeed& own,
                       std::span<const DiskNeed> ranks) {
  if (own.needed == 0) return;
  DiskNeed all{.free = own.free};
  size_t sharing = 0;
  for (const DiskNeed& one : ranks) {
    if (one.drives != own.drives || one.needed == 0) continue;
    all.needed += one.needed;
    all.held += one.held;
    ++sharing;
  }
  const uint64_t room = all.free + all.held;
  if (all.needed <= room) return;
  const std::vector<PathShare> shares = share_disk(plan, options);
  std::string folders;
  for (const PathShare& share : shares) folders += (folders.empty() ? "" : ", ") + share.path.string();
  const TierShortage nvme{"nvme", room, all.needed};
  throw ShortageError(
      {"there is no room for what lives on nvme in", folders,
       fmt::format("{} bytes ({}) are needed{} and {} ({}) are free, so that {}", all.needed,
                   format_bytes(all.needed), sharing > 1 ? fmt::format(" by {} ranks", sharing) : "", room,
                   format_bytes(room), missing_text(nvme)),
       advice_for(plan, options, nvme.missing_bytes(), shares.size() == 1)},
      {nvme});
}

}  // namespace terrace
