// DeviceArithmetic: the memory manager's computation on gradients and records in device memory that the host
// cannot reach. Calls are queued in order behind the operations requested before; none of them waits. Where
// the host reaches device memory, the workers compute the same with optimizer_cpu/, and no bit differs.
//
// The step thread calls it; DeviceLanes calls update_tiles() beside the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

// Every address is in device memory.
class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic() = default;

  virtual void update_tiles(const OptimizerStep& step, const TileRun& tiles) = 0;
  virtual void accumulate(const Accumulation& part) = 0;
  virtual void set_zero(std::byte* elements, DataType type, uint64_t count) = 0;
  // Computes the sum of each block of kSumBlockElements elements; the last block may be shorter.
  virtual void sums_of_squares(const std::byte* gradient, DataType type, uint64_t count,
                               std::span<double> sums) = 0;
};

// DeviceSums brings the sums of squares of many gradients to the host. The step thread uses it.
class DeviceSums {
 public:
  // `scratch` is work memory that nobody else uses from the first add() to finish().
  DeviceSums(DeviceArithmetic& arithmetic, Device& device, std::span<std::byte> scratch, StepWatch& watch);

  // `sums` is host memory, filled when finish() returns.
  void add(const std::byte* gradient, DataType type, uint64_t count, std::span<double> sums);
  void finish();

 private:
  struct Part {
    uint64_t first;  // index into scratch_
    std::span<double> sums;
  };

  DeviceArithmetic& arithmetic_;
  Device& device_;
  const std::span<double> scratch_;
  StepWatch& watch_;
  uint64_t used_ = 0;
  std::vector<Part> parts_;
};

}  // namespace terrace
