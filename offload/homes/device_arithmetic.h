// DeviceArithmetic: what the memory manager computes on gradients and records that rest in device memory,
// where the host cannot reach that. It happens in the order of the operations, after those that were asked
// for before; nothing here waits. Where the host reaches device memory the workers do the same with
// optimizer_cpu/, and no bit differs.
//
// Of the step thread; update_tiles() also of DeviceLanes, beside it.
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

// Every address is one of device memory.
class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic() = default;

  virtual void update_tiles(const OptimizerStep& step, const TileRun& tiles) = 0;
  virtual void accumulate(const Accumulation& part) = 0;
  virtual void set_zero(std::byte* elements, DataType type, uint64_t count) = 0;
  // Of each block of kSumBlockElements elements, the last one as long as it is.
  virtual void sums_of_squares(const std::byte* gradient, DataType type, uint64_t count,
                               std::span<double> sums) = 0;
};

// The sums of squares of many gradients, brought to the host. Used by the step thread.
class DeviceSums {
 public:
  // `scratch` is work memory that nobody else uses from the first add() to finish().
  DeviceSums(DeviceArithmetic& arithmetic, Device& device, std::span<std::byte> scratch, StepWatch& watch);

  // `sums` is of the host, and filled when finish() returns.
  void add(const std::byte* gradient, DataType type, uint64_t count, std::span<double> sums);
  void finish();

 private:
  struct Part {
    uint64_t first;  // of scratch_
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
