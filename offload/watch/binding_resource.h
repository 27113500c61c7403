// Which resource bounds a step, or a run of them: the one that would have to be faster for it to take less
// time. Resources work at the same time, so it is the one that was busy for most of it. It must only compare
// numbers that others have counted.
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
  device_compute,  // of a device that computes beside the processor; only a plan knows how long it does
};

// "the processor", "copies to the device", "copies from the device", "disk reads", "disk writes",
// "operations of the device".
std::string_view name_of(Resource resource);
// "processor", "h2d", "d2h", "disk_reads", "disk_writes", "device_compute": for programs.
std::string_view key_of(Resource resource);

struct ResourceUse {
  uint64_t total_ns = 0;
  uint64_t processor_ns = 0;  // what the step thread did not wait for anything else
  uint64_t h2d_ns = 0;
  uint64_t d2h_ns = 0;
  uint64_t disk_ns = 0;    // busy, or waited for: another process may have it
  uint64_t device_ns = 0;  // 0: the processor computes operations, or it is not known
  Resource binding = Resource::processor;
};

// Of every kind, over all paths of nvme.
uint64_t disk_read_bytes(const OffloadCounters& counted);
uint64_t disk_write_bytes(const OffloadCounters& counted);

// Of a span of time by what was counted in it. Of a busy disk the direction is named that was waited for
// longer; where neither was, the one of more bytes. The processor wins ties.
ResourceUse resource_use(const OffloadCounters& counted);
// The same where operations are computed beside the processor, and how long both compute is known.
struct ComputeUse {
  uint64_t device_ns = 0;
  uint64_t processor_ns = 0;
};
ResourceUse resource_use(const OffloadCounters& counted, const ComputeUse& compute);
// "bound by disk reads; busy: processor 31.2 %, disk 97.0 %, h2d 4.0 %, d2h 2.1 %", of the time.
std::string resource_text(const ResourceUse& use);

}  // namespace terrace
