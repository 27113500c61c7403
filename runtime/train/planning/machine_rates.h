// MachineRates: how fast this machine does what a step consists of beside its operations, each measured for a
// moment with the very code that the step runs, on memory of its own. Disks are not touched: their rates are
// what `terrace tune` remembers, or what somebody says.
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
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/train/planning/link_rates.h>
#include <terrace/runtime/train/planning/prediction.h>

namespace terrace {

// Of a device with memory of its own, which computes beside the host. Bytes or elements per second; 0: not
// known.
struct DeviceRates {
  LinkRates link;
  double chunk_seconds = 0;        // as MachineRates::chunk_seconds
  double clear_bytes = 0;          // zeros in device memory
  double sum_elements = 0;         // of gradients that rest there, for the norm
  double accumulate_elements = 0;  // gradients added up there
  double update_elements = 0;      // on records that are there
};

// Bytes or elements per second; 0: not known.
struct MachineRates {
  size_t thread_count = 1;
  std::optional<DeviceRates> device;  // nothing: the device is simulated, by these threads
  double copy_bytes = 0;              // between host and simulated device, on one thread
  double clear_bytes = 0;             // zeros, on one thread, in a simulated device
  // Seconds of the step thread for a chunk that comes to the device and leaves it, beside its bytes.
  double chunk_seconds = 0;
  double sum_elements = 0;              // of gradients, for the norm
  double accumulate_elements = 0;       // gradients added up
  double update_elements = 0;           // by one thread, on records in a ring that stays in the cache
  double update_together_elements = 0;  // by all threads, on records in memory
  double checksum_bytes = 0;            // by one thread, in the cache
  double disk_read_bytes = 0;
  double disk_write_bytes = 0;
  double disk_mixed_bytes = 0;  // both directions together, of blocks that are read and written back
  std::string disk_origin;      // "terrace tune, 2026-01-31T12:00:00Z", "--disk-read"

  bool knows_disk() const { return disk_read_bytes > 0 && disk_write_bytes > 0 && disk_mixed_bytes > 0; }
};

struct RateQuestion {
  RecordLayout layout = {};
  OptimizerSettings optimizer = {};
  DataType parameter_type = DataType::bf16;
  DataType gradient_type = DataType::bf16;  // as the update reads them
  uint64_t ring_bytes = 16 * kMiB;
  uint64_t round_ns = 60'000'000;  // at least so long each rate is measured
};

// What the update of a run with this configuration is.
RateQuestion rate_question(const TrainConfig& config);

// Takes about half a second, and 128 MiB of memory meanwhile.
MachineRates measure_rates(const RateQuestion& question, Workers& workers);

// Of slots that chunk_seconds is measured with, where the device has no larger granularity.
inline constexpr uint64_t kSmallSlotBytes = 64 * kKiB;

// MachineRates::chunk_seconds on a device with room for two slots of so many bytes; they are its own from
// then on. The fastest round is taken, of one at least and of what `round_ns` has room for.
double measure_chunk_seconds(Device& device, uint64_t slot_bytes, uint64_t round_ns);

// One of them: elements that the update computes in a second, with all threads on records in memory, or with
// one in the ring.
double measure_update_rate(const RateQuestion& question, bool together, Workers& workers);

// For people: every rate that is known, with its origin.
std::vector<PredictedRate> named_rates(const MachineRates& rates);

}  // namespace terrace
