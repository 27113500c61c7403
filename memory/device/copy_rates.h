// measure_copies(): measures, for `terrace bench copy`, how fast bytes cross the link between host memory and
// a device, by the copies of a Device and by plain ones in turn. It must never look at the bytes that it
// copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/device/device.h>

namespace terrace {

enum class CopyDirections : uint8_t { to_device, to_host, both };
inline constexpr std::array kCopyDirections = {CopyDirections::to_device, CopyDirections::to_host,
                                               CopyDirections::both};

// Memory of one side of the link, for copies to the device and for copies to the host. The two do not
// overlap.
struct CopyBuffers {
  std::span<std::byte> to_device;
  std::span<std::byte> to_host;
};

// A run is `count` copies of `bytes` in each of the directions, at one place of the buffers after the other.
struct CopyRun {
  CopyDirections directions = CopyDirections::to_device;
  CopyBuffers host;
  uint64_t bytes = 0;  // at most a buffer
  uint64_t count = 0;

  // The offset of the copy with this number in its buffer.
  uint64_t offset_of(uint64_t index) const { return index % (host.to_device.size() / bytes) * bytes; }
  uint64_t moved_bytes() const { return bytes * count * (directions == CopyDirections::both ? 2 : 1); }
};

// CopyWay: a way for bytes to cross the link. Buffers on the device are at least as long as the host's.
class CopyWay {
 public:
  virtual ~CopyWay() = default;
  // Returns when all copies are over, with the time that they took. Throws when one fails.
  virtual uint64_t run_ns(const CopyRun& run) = 0;
};

// StreamCopies: copies by the streams of a Device, between host memory and a slot per direction, which it
// takes from the budget.
class StreamCopies final : public CopyWay {
 public:
  StreamCopies(Device& device, uint64_t buffer_bytes);
  uint64_t run_ns(const CopyRun& run) override;

 private:
  Device& device_;
  DeviceSlot to_device_, to_host_;
};

// PlainCopies: one thread for each direction makes one copy after the other.
class PlainCopies : public CopyWay {
 public:
  uint64_t run_ns(const CopyRun& run) final;

 private:
  // Makes all copies of one direction and waits for their end. Both directions run at once, each on a thread
  // of its own.
  virtual void copy_all(const CopyRun& run, bool to_device) = 0;
};

// Makes the plain way beside a SimulatedDevice, which copies by memcpy.
std::unique_ptr<CopyWay> make_plain_memory_copies(CopyBuffers device);

struct CopyPlan {
  std::vector<uint64_t> sizes;  // bytes of one copy
  uint64_t buffer_bytes = 0;    // at least the largest size
  uint64_t moved_bytes = 0;     // about so many bytes in each direction of a measurement
  uint64_t rounds = 0;

  // The bytes on the device for StreamCopies and a plain way, each with a buffer per direction.
  uint64_t device_bytes(uint64_t granularity_bytes) const;
};

struct HostMemoryKind {
  std::string name;  // "page-locked"
  CopyBuffers buffers;
};

// The measurement of one size, kind of memory and directions, with one value per round.
struct CopyMeasurement {
  uint64_t bytes = 0;
  uint64_t count = 0;  // copies of a measurement, in each direction
  std::string memory;
  CopyDirections directions = CopyDirections::to_device;
  std::vector<double> stream_bytes_per_second;  // both directions together
  std::vector<double> plain_bytes_per_second;
};

// Returns measurements by size, then memory, then directions. Every round measures everything once, the two
// ways next to each other and each the first in every other round, so that both see the same machine.
// `begin_round` is given the number of the round, from 1 on; round 0 is not counted.
std::vector<CopyMeasurement> measure_copies(const CopyPlan& plan, std::span<const HostMemoryKind> memories,
                                            CopyWay& streams, CopyWay& plain,
                                            FunctionRef<void(uint64_t)> begin_round);

}  // namespace terrace
