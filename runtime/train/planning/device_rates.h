// How fast a device with memory of its own does what a step consists of beside its operations. Measured for a
// moment with the very code that the step runs, on memory that is given back before this returns.
#pragma once

#include <cstdint>

#include <terrace/base/workers.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/train/planning/machine_rates.h>

namespace terrace {

struct DeviceRateBounds {
  uint64_t device_bytes = 0;  // the most that is taken of its memory; what does not fit is not known
  bool lock_host_memory = true;
};

// Throws Error: device, capacity.
DeviceRates measure_device_rates(const ComputeDevice& compute, const RateQuestion& question,
                                 const DeviceRateBounds& bounds, Workers& workers);

}  // namespace terrace
