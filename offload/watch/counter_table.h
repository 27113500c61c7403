// The one table of an Offloader's counters. Sums and differences, the log of steps, reports and the page of a
// run are made from it. A counter in OffloadCounters without a row here does not compile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace/offload/watch/counters.h>

namespace terrace {

enum class CounterUnit : uint8_t { bytes, count, ns };

struct CounterEntry {
  std::string_view key;   // for programs: "h2d"; empty: no log has it
  std::string_view name;  // for people; empty: no report has it
  CounterUnit unit;
  uint64_t OffloadCounters::*value;
  bool is_link;                   // a step moves bytes over it
  uint64_t TrafficBound::*bound;  // the bound of a link; null: no decision changes the bytes

  constexpr bool is_wait() const { return !name.empty() && unit == CounterUnit::ns; }
};

namespace counter_table {
constexpr CounterEntry link(std::string_view key, std::string_view name, uint64_t OffloadCounters::*value,
                            uint64_t TrafficBound::*bound) {
  return {key, name, CounterUnit::bytes, value, true, bound};
}
// The time that a thread waits for one thing; the times of several rows may overlap.
constexpr CounterEntry wait(std::string_view key, std::string_view name, uint64_t OffloadCounters::*value) {
  return {key, name, CounterUnit::ns, value, false, nullptr};
}
constexpr CounterEntry logged(std::string_view key, CounterUnit unit, uint64_t OffloadCounters::*value) {
  return {key, "", unit, value, false, nullptr};
}
constexpr CounterEntry inner(CounterUnit unit, uint64_t OffloadCounters::*value) {
  return {"", "", unit, value, false, nullptr};
}

// The rows are in the order of logs and reports.
inline constexpr auto kAll = std::to_array<CounterEntry>({
    link("h2d", "host -> device", &OffloadCounters::h2d_bytes, &TrafficBound::h2d_bytes),
    link("d2h", "device -> host", &OffloadCounters::d2h_bytes, &TrafficBound::d2h_bytes),
    link("param_read", "parameters, nvme reads", &OffloadCounters::param_read_bytes,
         &TrafficBound::param_read_bytes),
    link("direct_read", "of these, read by the device itself", &OffloadCounters::direct_read_bytes,
         &TrafficBound::direct_read_bytes),
    link("param_write", "parameters, nvme writes", &OffloadCounters::param_write_bytes,
         &TrafficBound::param_write_bytes),
    link("record_read", "states, nvme reads", &OffloadCounters::record_read_bytes,
         &TrafficBound::record_read_bytes),
    link("record_write", "states, nvme writes", &OffloadCounters::record_write_bytes,
         &TrafficBound::record_write_bytes),
    link("gradient_read", "gradients, nvme reads", &OffloadCounters::gradient_read_bytes,
         &TrafficBound::gradient_read_bytes),
    link("gradient_write", "gradients, nvme writes", &OffloadCounters::gradient_write_bytes,
         &TrafficBound::gradient_write_bytes),
    link("activation_d2h", "activations to the host", &OffloadCounters::activation_d2h_bytes, nullptr),
    link("activation_h2d", "activations back", &OffloadCounters::activation_h2d_bytes, nullptr),
    link("activation_read", "activations, nvme reads", &OffloadCounters::activation_read_bytes, nullptr),
    link("activation_write", "activations, nvme writes", &OffloadCounters::activation_write_bytes, nullptr),
    link("gather_in", "parameters of other ranks", &OffloadCounters::gather_in_bytes,
         &TrafficBound::gather_in_bytes),
    link("gather_out", "parameters to other ranks", &OffloadCounters::gather_out_bytes,
         &TrafficBound::gather_out_bytes),
    link("host_gather_in", "parameters from other hosts", &OffloadCounters::host_gather_in_bytes,
         &TrafficBound::host_gather_in_bytes),
    link("host_gather_out", "parameters to other hosts", &OffloadCounters::host_gather_out_bytes,
         &TrafficBound::host_gather_out_bytes),
    link("exchange_in", "gradients of other ranks", &OffloadCounters::exchange_in_bytes,
         &TrafficBound::exchange_in_bytes),
    link("exchange_out", "gradients to other ranks", &OffloadCounters::exchange_out_bytes,
         &TrafficBound::exchange_out_bytes),
    link("host_exchange_in", "gradients from other hosts", &OffloadCounters::host_exchange_in_bytes,
         &TrafficBound::host_exchange_in_bytes),
    link("host_exchange_out", "gradients to other hosts", &OffloadCounters::host_exchange_out_bytes,
         &TrafficBound::host_exchange_out_bytes),
    logged("fetches", CounterUnit::count, &OffloadCounters::fetch_count),
    logged("demand_fetches", CounterUnit::count, &OffloadCounters::demand_fetch_count),
    logged("evictions", CounterUnit::count, &OffloadCounters::eviction_count),
    wait("fetch_wait", "waiting for parameters", &OffloadCounters::fetch_wait_ns),
    wait("activation_wait", "waiting for activations", &OffloadCounters::activation_wait_ns),
    wait("landing_wait", "waiting for gradients to land", &OffloadCounters::landing_wait_ns),
    wait("update_wait", "update waiting for the disk", &OffloadCounters::update_wait_ns),
    wait("pending_update_wait", "waiting for a pending update", &OffloadCounters::pending_update_wait_ns),
    logged("commit_write", CounterUnit::bytes, &OffloadCounters::commit_write_bytes),
    logged("manifest", CounterUnit::bytes, &OffloadCounters::manifest_bytes),
    wait("commit_wait", "waiting for commits", &OffloadCounters::commit_wait_ns),
    logged("commits", CounterUnit::count, &OffloadCounters::commit_count),
    logged("h2d_busy", CounterUnit::ns, &OffloadCounters::h2d_busy_ns),
    logged("d2h_busy", CounterUnit::ns, &OffloadCounters::d2h_busy_ns),
    logged("disk_busy", CounterUnit::ns, &OffloadCounters::disk_busy_ns),
    inner(CounterUnit::bytes, &OffloadCounters::cache_read_bytes),
    inner(CounterUnit::bytes, &OffloadCounters::cache_write_bytes),
    inner(CounterUnit::bytes, &OffloadCounters::update_gradient_read_bytes),
    inner(CounterUnit::bytes, &OffloadCounters::restore_read_bytes),
    inner(CounterUnit::count, &OffloadCounters::restored_chunk_count),
    inner(CounterUnit::ns, &OffloadCounters::update_ns),
    inner(CounterUnit::ns, &OffloadCounters::update_write_wait_ns),
    inner(CounterUnit::ns, &OffloadCounters::update_compute_ns),
    inner(CounterUnit::ns, &OffloadCounters::update_check_ns),
    inner(CounterUnit::ns, &OffloadCounters::update_device_wait_ns),
    inner(CounterUnit::ns, &OffloadCounters::norm_ns),
    inner(CounterUnit::ns, &OffloadCounters::gather_wait_ns),
    inner(CounterUnit::ns, &OffloadCounters::exchange_wait_ns),
    inner(CounterUnit::ns, &OffloadCounters::ballot_wait_ns),
});
static_assert(sizeof(OffloadCounters) == kAll.size() * sizeof(uint64_t) + sizeof(TimeParts),
              "a counter has no row in the table");

template <size_t count>
constexpr std::array<CounterEntry, count> chosen(bool (*is_wanted)(const CounterEntry&)) {
  std::array<CounterEntry, count> rows{};
  std::copy_if(kAll.begin(), kAll.end(), rows.begin(), is_wanted);
  return rows;
}
constexpr bool is_link(const CounterEntry& entry) {
  return entry.is_link;
}
constexpr bool is_wait(const CounterEntry& entry) {
  return entry.is_wait();
}
}  // namespace counter_table

inline constexpr auto kCounters = counter_table::kAll;
inline constexpr auto kLinks =
    counter_table::chosen<std::count_if(kCounters.begin(), kCounters.end(), counter_table::is_link)>(
        counter_table::is_link);
inline constexpr auto kWaits =
    counter_table::chosen<std::count_if(kCounters.begin(), kCounters.end(), counter_table::is_wait)>(
        counter_table::is_wait);

// The link with this key; the key must exist.
constexpr const CounterEntry& link_of(std::string_view key) {
  return *std::find_if(kLinks.begin(), kLinks.end(),
                       [key](const CounterEntry& link) { return link.key == key; });
}

// The least bytes per step over the link, for `steps` steps that moved `moved` in all. A link without a bound
// has its own average as the least.
inline uint64_t least_per_step(const CounterEntry& link, const TrafficBound& bound,
                               const OffloadCounters& moved, uint64_t steps) {
  if (link.bound != nullptr) return bound.*link.bound;
  return steps > 0 ? moved.*link.value / steps : 0;
}

}  // namespace terrace
