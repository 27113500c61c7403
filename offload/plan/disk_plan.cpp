#include <terrace/offload/plan/disk_plan.h>

#include <algorithm>

#include <terrace/memory/tier/path_balancer.h>

namespace terrace {
namespace {

void add_role(const std::vector<TierPath>& paths, uint64_t file_bytes, uint64_t block_bytes,
              std::vector<PathShare>& shares) {
  std::vector<double> rates;
  for (const TierPath& path : paths) rates.push_back(path.bytes_per_second);
  const uint64_t slots = file_bytes / block_bytes;
  const std::vector<uint64_t> with_room = share_slots(slots, rates);
  uint64_t sum = 0;
  for (const uint64_t count : with_room) sum += count;
  for (size_t p = 0; p < paths.size(); ++p) {
    auto share = std::ranges::find(shares, paths[p].path, &PathShare::path);
    if (share == shares.end()) share = shares.insert(shares.end(), {paths[p].path, 0, 0});
    share->bytes += with_room[p] * block_bytes;
    share->least_bytes += sum == 0 ? 0 : slots * with_room[p] / sum * block_bytes;
  }
}

}  // namespace

std::vector<PathShare> share_disk(const MemoryPlan& plan, const OffloadOptions& options) {
  std::vector<PathShare> shares;
  if (options.states == Placement::nvme)
    add_role(options.state_paths, plan.record_file_bytes, plan.ring_slot_bytes, shares);
  if (plan.gradient_file_bytes > 0)
    add_role(passing_paths(options), plan.gradient_file_bytes, plan.spill_block_bytes(), shares);
  if (plan.activation_file_bytes > 0)
    add_role(passing_paths(options), plan.activation_file_bytes, plan.activation_block_bytes(), shares);
  for (const uint64_t bytes : {plan.parameter_file_bytes - plan.frozen_file_bytes, plan.frozen_file_bytes}) {
    if (bytes == 0) continue;
    add_role(options.parameters == Placement::nvme ? options.parameter_paths : options.state_paths, bytes,
             plan.param_block_bytes(), shares);
  }
  return shares;
}

}  // namespace terrace
