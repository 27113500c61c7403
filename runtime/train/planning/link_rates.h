// LinkRates: how fast bytes cross the link between host memory and a device, by the copies that a run makes
// (StreamCopies), each measured for a moment. It must never know what is copied in a run, or when.
#pragma once

#include <cstdint>

#include <terrace/base/workers.h>
#include <terrace/runtime/model/compute/compute_device.h>

namespace terrace {

// Bytes per second.
struct LinkRates {
  double to_device = 0;  // while nothing goes the other way
  double to_host = 0;    // the same
  double each_way = 0;   // while both go: of the slower one
};

// Copies 128 MiB for each of them. `lock_host_memory`: as the run has it (Device::lock_host_memory). Takes
// 32 MiB of either memory meanwhile, which must be free, or `device_bytes` where those are less, and at least
// two pieces of what the device's memory comes in; copies are then as much smaller. Throws Error: device,
// capacity.
LinkRates measure_link_rates(const ComputeDevice& compute, bool lock_host_memory, Workers& workers,
                             uint64_t device_bytes = UINT64_MAX);

}  // namespace terrace
