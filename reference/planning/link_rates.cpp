#include <terrace/reference/planning/link_rates.h>

#include <algorithm>
#include <memory>

#include <terrace/base/units.h>
#include <terrace/memory/device/copy_rates.h>
#include <terrace/memory/host/pages.h>

namespace terrace {
namespace {

constexpr uint64_t kDirectionBytes = 16 * kMiB;
constexpr uint64_t kCopyBytes = kMiB;  // about a run of tiles, or a small chunk
constexpr uint64_t kCopies = 32;
constexpr int kRounds = 4;  // one of them for pages and queues that are new

// What disturbs a round only makes it slower.
double fastest(StreamCopies& copies, const CopyBuffers& host, CopyDirections directions) {
  const uint64_t bytes = std::min<uint64_t>(kCopyBytes, host.to_device.size());
  const CopyRun run{.directions = directions, .host = host, .bytes = bytes, .count = kCopies};
  uint64_t best_ns = UINT64_MAX;
  for (int round = 0; round < kRounds; ++round) best_ns = std::min(best_ns, copies.run_ns(run));
  return static_cast<double>(bytes * kCopies) / (static_cast<double>(std::max<uint64_t>(best_ns, 1)) * 1e-9);
}

}  // namespace

LinkRates measure_link_rates(const ComputeDevice& compute, bool lock_host_memory, Workers& workers,
                             uint64_t device_bytes) {
  const uint64_t granularity = std::max<uint64_t>(compute.facts().granularity_bytes, page_bytes());
  const uint64_t pieces = std::max<uint64_t>(device_bytes / 2 / granularity, 1);
  const uint64_t buffer_bytes = std::min(round_up(kDirectionBytes, granularity), pieces * granularity);
  const PageMapping pages =
      PageMapping::populated(2 * round_up(buffer_bytes, page_bytes()), true, "measuring the link");
  const CopyBuffers host{pages.memory().first(buffer_bytes), pages.memory().last(buffer_bytes)};
  const std::unique_ptr<Computing> computing = compute.begin(2 * buffer_bytes, false, workers);
  Device& device = computing->device();
  std::unique_ptr<HostMemoryLock> lock;
  if (lock_host_memory) lock = device.lock_host_memory(pages.memory());
  StreamCopies copies(device, buffer_bytes);
  return {.to_device = fastest(copies, host, CopyDirections::to_device),
          .to_host = fastest(copies, host, CopyDirections::to_host),
          .each_way = fastest(copies, host, CopyDirections::both)};
}

}  // namespace terrace
