// GradientArithmetic: the computation on gradients between backward and update: accumulation, and the sums of
// squares for the norm. It must never know where a gradient rests.
//
// WorkerGradients takes the sums while a gradient lands, block by block and fused with the last accumulation,
// so no pass over all gradients remains for the update. DeviceGradients is for device memory that the host
// cannot reach, and takes all sums together when the step's last micro-batch has ended. No bit differs.
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
  explicit GradientArithmetic(GradientSums sums) : sums_(std::move(sums)) {}
  virtual ~GradientArithmetic() = default;
  GradientArithmetic(const GradientArithmetic&) = delete;
  GradientArithmetic& operator=(const GradientArithmetic&) = delete;

  GradientSums& sums() { return sums_; }
  const GradientSums& sums() const { return sums_; }

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

 protected:
  // Both sums of the own part of a chunk, the second with groups only.
  struct Sums {
    std::byte* step;
    std::byte* group;  // null without groups
    DataType type;
  };
  Sums sums_at(ChunkId chunk, std::byte* accumulator, uint64_t element, DataType type,
               const StepRounds& rounds) const {
    const uint64_t elements = sums_.block_count(chunk) * kSumBlockElements;
    std::byte* const step = accumulator + element * bytes_of(type);
    return {step, rounds.has_groups() ? step + elements * bytes_of(type) : nullptr, type};
  }
  static LandingSteps steps_of(const GradientRun& run, const GradientLanding& landing, bool has_gradient,
                               const StepRounds& rounds) {
    return landing.is_group_sum ? group_sum_steps(run, landing.micro_batch, rounds)
                                : landing_steps(run, landing.micro_batch, has_gradient, rounds);
  }
  // Goes through the steps of a landing, with `clear(sum)` and `add(sum, from, type of from, replaces)`.
  template <typename Clear, typename Add>
  static void go_through(const LandingSteps& steps, const Sums& sums, const std::byte* gradient,
                         DataType gradient_type, Clear clear, Add add) {
    if (steps.clears) clear(sums.step);
    if (steps.joins_before) add(sums.step, sums.group, sums.type, steps.is_first_group);
    if (steps.clears_group) clear(sums.group);
    if (gradient != nullptr)
      add(sums.group != nullptr && !steps.passes_group ? sums.group : sums.step, gradient, gradient_type,
          steps.replaces);
    if (steps.joins_after) add(sums.step, sums.group, sums.type, steps.is_only_group);
  }

  GradientSums sums_;
};

class WorkerGradients final : public GradientArithmetic {
 public:
  // All references outlive this.
  WorkerGradients(const FlatSpace& space, GradientSums sums, const OffloadOptions& options, Workers& workers,
                  InstructionSet instruction_set, StepWatch& watch);

  using GradientArithmetic::take;
  void take(std::span<const ChunkId> chunks, Tiles tiles) override;
  void add(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient,
           bool takes_sums) override;

 private:
  void add_block(const GradientLanding& landing, uint64_t block, std::byte* accumulator,
                 const std::byte* gradient, bool takes_sum);

  const FlatSpace& space_;
  const OffloadOptions& options_;
  Workers& workers_;
  const InstructionSet instruction_set_;
  StepWatch& watch_;
  std::vector<size_t> task_ends_;  // by chunk of the widest take() so far: tasks of it and of those before
};

class DeviceGradients final : public GradientArithmetic {
 public:
  // All references outlive this.
  DeviceGradients(const FlatSpace& space, GradientSums sums, const OffloadOptions& options,
                  DeviceArithmetic& arithmetic, DeviceSums device_sums)
      : GradientArithmetic(std::move(sums)),
        space_(space),
        options_(options),
        arithmetic_(arithmetic),
        device_sums_(std::move(device_sums)) {}

  using GradientArithmetic::take;
  void take(std::span<const ChunkId> chunks, Tiles tiles) override;
  void add(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient,
           bool takes_sums) override;
  void finish_step(GradientSource& gradients) override;

 private:
  const FlatSpace& space_;
  const OffloadOptions& options_;
  DeviceArithmetic& arithmetic_;
  DeviceSums device_sums_;
};

}  // namespace terrace
