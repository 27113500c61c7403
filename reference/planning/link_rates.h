// LinkRates: the rates at which bytes cross the link between host memory and a device, by the copies that a
// run makes (StreamCopies), each measured briefly. The code must never know what a run copies, or when.
#pragma once

#include <cstdint>

#include <terrace/base/workers.h>
#include <terrace/reference/model/compute/compute_device.h>

namespace terrace {

// Bytes per second.
struct LinkRates {
  double to_device = 0;  // while nothing goes to the host
  double to_host = 0;    // while nothing goes to the device
  double each_way = 0;   // while both go: the rate of the slower one
};

// Copies 128 MiB for each rate. `lock_host_memory` is the run's (Device::lock_host_memory). It takes 32 MiB
// of either memory meanwhile, which must be free, or `device_bytes` if those are less, but at least two
// granules of the device's memory; copies are then smaller accordingly. Throws Error: device, capacity.
LinkRates measure_link_rates(const ComputeDevice& compute, bool lock_host_memory, Workers& workers,
                             uint64_t device_bytes = UINT64_MAX);

}  // namespace terrace
