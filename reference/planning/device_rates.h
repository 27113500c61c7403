// The rates of a device with memory of its own for the work of a step beside its operations. Each is measured
// briefly with the code that the step runs, on memory that is given back before the function returns.
#pragma once

#include <cstdint>

#include <terrace/base/workers.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/planning/machine_rates.h>

namespace terrace {

struct DeviceRateBounds {
  uint64_t device_bytes = 0;  // the most device memory to take; rates that need more stay unknown
  bool lock_host_memory = true;
};

// Throws Error: device, capacity.
DeviceRates measure_device_rates(const ComputeDevice& compute, const RateQuestion& question,
                                 const DeviceRateBounds& bounds, Workers& workers);

}  // namespace terrace
