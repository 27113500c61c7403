// GradientArithmetic: the computation on gradients between backward and update: accumulation, and the sums of
// squares for the norm. It must never know where a gradient rests.
//
// ArithmeticByWorkers takes the sums while a gradient lands, block by block and fused with the last
// accumulation, so no pass over all gradients remains for the update. ArithmeticByDevice is for device memory
// that the host cannot reach, and takes all sums together when the step's last micro-batch has ended. No bit
// differs.
//
// Used by the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_arithmetic.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/landing/gradient_sums.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class GradientArithmetic {
 public:
  virtual ~GradientArithmetic() = default;

  virtual GradientSums& sums() = 0;

  // Gives one tile of a gradient: in place, or made in `scratch`, which has room for it.
  using Tiles = FunctionRef<const std::byte*(ChunkId chunk, uint64_t tile, std::byte* scratch)>;
  // The chunks' gradients are complete, in the types of their parameters; the sums are taken now, all chunks'
  // together, or by finish_step().
  virtual void take(std::span<const ChunkId> chunks, Tiles tiles) = 0;
  void take(ChunkId chunk, DataType type, const std::byte* gradient) {
    take({&chunk, 1}, [&](ChunkId, uint64_t tile, std::byte*) {
      return gradient + tile * kTileElements * bytes_of(type);
    });
  }
  // Adds a landing to the chunk's accumulator; both addresses are those of the chunk's first element. With
  // groups of micro-batches the sum of the open group lies behind that of the step. A null
  // `gradient` stands for zeros. The gradient is complete when the landing ends it. `takes_sums`: the sums of
  // the blocks that the landing reaches are taken, since these blocks may be complete.
  virtual void add(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient,
                   bool takes_sums) = 0;
  // Call when the whole step has landed in `gradients`; afterwards the sums of all complete gradients are
  // known.
  virtual void finish_step(GradientSource& gradients) { (void)gradients; }
};

class ArithmeticByWorkers final : public GradientArithmetic {
 public:
  // All references outlive this.
  ArithmeticByWorkers(const FlatSpace& space, GradientSums sums, const OffloadOptions& options,
                      Workers& workers, InstructionSet instruction_set, StepWatch& watch);

  GradientSums& sums() override { return sums_; }
  using GradientArithmetic::take;
  void take(std::span<const ChunkId> chunks, Tiles tiles) override;
  void add(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient,
           bool takes_sums) override;

 private:
  void add_block(const GradientLanding& landing, uint64_t block, std::byte* accumulator,
                 const std::byte* gradient, bool takes_sum);

  const FlatSpace& space_;
  GradientSums sums_;
  const OffloadOptions& options_;
  Workers& workers_;
  const InstructionSet instruction_set_;
  StepWatch& watch_;
  std::vector<size_t> task_ends_;  // by chunk of the widest take() so far: tasks of it and of those before
};

class ArithmeticByDevice final : public GradientArithmetic {
 public:
  // All references outlive this.
  ArithmeticByDevice(const FlatSpace& space, GradientSums sums, const OffloadOptions& options,
                     DeviceArithmetic& arithmetic, DeviceSums device_sums)
      : space_(space),
        sums_(std::move(sums)),
        options_(options),
        arithmetic_(arithmetic),
        device_sums_(std::move(device_sums)) {}

  GradientSums& sums() override { return sums_; }
  using GradientArithmetic::take;
  void take(std::span<const ChunkId> chunks, Tiles tiles) override;
  void add(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient,
           bool takes_sums) override;
  void finish_step(GradientSource& gradients) override;

 private:
  const FlatSpace& space_;
  GradientSums sums_;
  const OffloadOptions& options_;
  DeviceArithmetic& arithmetic_;
  DeviceSums device_sums_;
};

}  // namespace terrace
