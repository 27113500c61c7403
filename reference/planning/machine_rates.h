// MachineRates: the rates of this machine for the work of a step beside its operations. Each is measured
// briefly with the code that the step runs, on memory of its own. Drives are not touched: their rates come
// from `terrace tune` or from the user.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/reference/planning/link_rates.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

// The rates of a device with memory of its own, which computes beside the host. Bytes or elements per second;
// 0: unknown.
struct DeviceRates {
  LinkRates link;
  double chunk_seconds = 0;        // as MachineRates::chunk_seconds
  double clear_bytes = 0;          // zeros written to device memory
  double sum_elements = 0;         // gradients in device memory, for the norm
  double accumulate_elements = 0;  // gradients added up in device memory
  double update_elements = 0;      // on records in device memory
};

// The rates of a machine. Bytes or elements per second; 0: unknown.
struct MachineRates {
  std::string origin = "measured now";  // of all that has no origin of its own
  size_t thread_count = 1;
  std::optional<DeviceRates> device;  // nothing: these threads simulate the device
  double copy_bytes = 0;              // between host and simulated device, on one thread
  double clear_bytes = 0;             // zeros written by one thread, in a simulated device
  // Seconds that the step thread takes for a chunk to come to the device and leave it, beside its bytes.
  double chunk_seconds = 0;
  double sum_elements = 0;              // gradients, for the norm
  double accumulate_elements = 0;       // gradients added up
  double update_elements = 0;           // by one thread, on records in a ring that stays in the cache
  double update_together_elements = 0;  // by all threads, on records in memory
  double checksum_bytes = 0;            // by one thread, in the cache
  double disk_read_bytes = 0;
  double disk_write_bytes = 0;
  double disk_mixed_bytes = 0;  // both directions together, blocks being read and written back
  std::string disk_origin;      // "terrace tune, 2026-01-31T12:00:00Z", "--disk-read"
  // Between ranks. What one receives in a second while it sends as much, and the seconds that an operation
  // takes for each of the others beside its bytes: those of one host, and those of different hosts.
  double rank_bytes = 0;
  double rank_seconds = 0;
  bool given_ranks = false;  // else these two have the origin of all
  double network_bytes = 0;
  double network_seconds = 0;
  double network_delay = 0;  // how long a message to another host is on its way, where several are at once

  bool knows_disk() const { return disk_read_bytes > 0 && disk_write_bytes > 0 && disk_mixed_bytes > 0; }
};

struct RateQuestion {
  RecordLayout layout = {};
  OptimizerSettings optimizer = {};
  DataType parameter_type = DataType::bf16;
  DataType gradient_type = DataType::bf16;  // type in which the update reads gradients
  uint64_t ring_bytes = 16 * kMiB;
  uint64_t round_ns = 60'000'000;  // the least time of each measurement
};

// Returns the question for the update of a run with this configuration.
RateQuestion rate_question(const TrainConfig& config);

// What ranks of such a run have between them.
RankLinks rank_links(const MachineRates& rates, const TrainConfig& config);

// Whether all is known of the ranks of such a run that needs to be for its time.
bool knows_ranks(const MachineRates& rates, const TrainConfig& config);

// Takes about half a second, and 128 MiB of memory meanwhile.
MachineRates measure_rates(const RateQuestion& question, Workers& workers);

// Bytes of the slots that measure chunk_seconds, unless the device has a larger granularity.
inline constexpr uint64_t kSmallSlotBytes = 64 * kKiB;

// Measures MachineRates::chunk_seconds on a device with room for two slots of `slot_bytes`, which the
// function allocates for good. It takes the fastest of the rounds that fit into `round_ns`, but at least one.
double measure_chunk_seconds(Device& device, uint64_t slot_bytes, uint64_t round_ns);

// Measures one rate: the elements that the update computes in a second, by all threads on records in memory
// (`together`), or by one thread in the ring.
double measure_update_rate(const RateQuestion& question, bool together, Workers& workers);

// Returns every known rate with its origin, for people.
std::vector<PredictedRate> named_rates(const MachineRates& rates);

}  // namespace terrace
