#include <terrace/offload/watch/counters.h>

#include <array>

namespace terrace {
namespace {

// Every counter but the parts of the time.
constexpr auto kCounters = std::to_array<uint64_t OffloadCounters::*>({
    &OffloadCounters::h2d_bytes,
    &OffloadCounters::d2h_bytes,
    &OffloadCounters::param_read_bytes,
    &OffloadCounters::direct_read_bytes,
    &OffloadCounters::param_write_bytes,
    &OffloadCounters::record_read_bytes,
    &OffloadCounters::record_write_bytes,
    &OffloadCounters::cache_read_bytes,
    &OffloadCounters::cache_write_bytes,
    &OffloadCounters::gradient_read_bytes,
    &OffloadCounters::gradient_write_bytes,
    &OffloadCounters::update_gradient_read_bytes,
    &OffloadCounters::activation_read_bytes,
    &OffloadCounters::activation_write_bytes,
    &OffloadCounters::restore_read_bytes,
    &OffloadCounters::activation_d2h_bytes,
    &OffloadCounters::activation_h2d_bytes,
    &OffloadCounters::fetch_count,
    &OffloadCounters::demand_fetch_count,
    &OffloadCounters::eviction_count,
    &OffloadCounters::restored_chunk_count,
    &OffloadCounters::fetch_wait_ns,
    &OffloadCounters::activation_wait_ns,
    &OffloadCounters::landing_wait_ns,
    &OffloadCounters::update_wait_ns,
    &OffloadCounters::turn_wait_ns,
    &OffloadCounters::pending_update_wait_ns,
    &OffloadCounters::update_ns,
    &OffloadCounters::update_write_wait_ns,
    &OffloadCounters::update_compute_ns,
    &OffloadCounters::update_check_ns,
    &OffloadCounters::update_device_wait_ns,
    &OffloadCounters::norm_ns,
    &OffloadCounters::commit_count,
    &OffloadCounters::commit_write_bytes,
    &OffloadCounters::manifest_bytes,
    &OffloadCounters::commit_wait_ns,
    &OffloadCounters::h2d_busy_ns,
    &OffloadCounters::d2h_busy_ns,
    &OffloadCounters::disk_busy_ns,
});
static_assert(sizeof(OffloadCounters) == kCounters.size() * sizeof(uint64_t) + sizeof(TimeParts),
              "a counter is missing in the list");

}  // namespace

OffloadCounters operator-(const OffloadCounters& later, const OffloadCounters& earlier) {
  OffloadCounters difference = later;
  for (const auto counter : kCounters) difference.*counter -= earlier.*counter;
  difference.time = later.time - earlier.time;
  return difference;
}

OffloadCounters operator+(const OffloadCounters& one, const OffloadCounters& other) {
  OffloadCounters sum = one;
  for (const auto counter : kCounters) sum.*counter += other.*counter;
  sum.time = one.time + other.time;
  return sum;
}

}  // namespace terrace
