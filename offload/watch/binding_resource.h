// The resource that bounds a step or a run of steps: the one that would have to be faster for the steps to
// take less time. Resources work at the same time, so the bound is the resource that was busy the longest.
// This header must only compare numbers that others have counted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/offload/watch/counters.h>

namespace terrace {

enum class Resource : uint8_t {
  processor,
  host_to_device,
  device_to_host,
  disk_reads,
  disk_writes,
  device_compute,  // a device that computes beside the processor; only a plan knows its time
};

// "the processor", "copies to the device", "copies from the device", "disk reads", "disk writes", "operations
// of the device". These are for people.
std::string_view name_of(Resource resource);
// "processor", "h2d", "d2h", "disk_reads", "disk_writes", "device_compute": for programs.
std::string_view key_of(Resource resource);

struct ResourceUse {
  uint64_t total_ns = 0;
  uint64_t processor_ns = 0;  // the step thread computed or decided and waited for nothing else
  uint64_t h2d_ns = 0;
  uint64_t d2h_ns = 0;
  uint64_t disk_ns = 0;    // busy, or waited for while another process has the drive
  uint64_t device_ns = 0;  // 0: the processor computes operations, or it is not known
  Resource binding = Resource::processor;
};

// Bytes of every kind of read or write, over all nvme paths.
uint64_t disk_read_bytes(const OffloadCounters& counted);
uint64_t disk_write_bytes(const OffloadCounters& counted);

// The use of resources in a span of time, from its counters. If the drives bind, `binding` names the
// direction that was waited for longer, or, without any wait, the direction with more bytes. The processor
// wins ties.
ResourceUse resource_use(const OffloadCounters& counted);
// ComputeUse: the measured compute times of the device and the processor, where operations run beside the
// processor.
struct ComputeUse {
  uint64_t device_ns = 0;
  uint64_t processor_ns = 0;
};
ResourceUse resource_use(const OffloadCounters& counted, const ComputeUse& compute);
// The use in words, in shares of the time: "bound by disk reads; busy: processor 31.2 %, disk 97.0 %, h2d 4.0
// %, d2h 2.1 %".
std::string resource_text(const ResourceUse& use);

}  // namespace terrace
