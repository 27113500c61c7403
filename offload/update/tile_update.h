// TileUpdate: the arithmetic of an update on the tiles of one chunk: which gradient, which settings, and
// where the new parameters go. It moves nothing between tiers and waits for nothing.
//
// New parameters that are made on the host go straight into the chunk's home slot where it has one. Elsewhere
// they go over its gradient, which is spent: into the same place where both are of one type, and beside a
// wider gradient into each tile's own bytes, to be drawn together when all tiles are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/record_layout.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/homes/device_arithmetic.h>
#include <terrace/offload/homes/gradient_source.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

// Where a run of tiles is in device memory, each part from its first element on. `parameters` are the old
// ones, where the records need them, and then the new ones.
struct TilePlaces {
  std::byte* records = nullptr;
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;
};

class TileUpdate {
 public:
  TileUpdate(const FlatSpace& space, GradientSource& gradients, ParamHome& home, const RecordLayout& layout,
             InstructionSet instruction_set, DeviceArithmetic* device_arithmetic, bool dry);

  // The constants of each parameter group, for the update that begins; they stay until it is over.
  void begin(std::span<const OptimizerStep> steps) { steps_ = steps; }

  // A run of tiles whose records are at `records`; any number of runs at once. Each tile once: its gradient
  // is gone then.
  void update(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const;
  // Every tile of the chunk was updated: where its new parameters lie, one after the other. `run_tiles`: of
  // runs that were updated elsewhere and came back, each to output_of() its first tile.
  std::byte* complete(ChunkId chunk, uint64_t run_tiles = 1) const;
  // Those of a run; of host memory.
  const std::byte* gradients_of(ChunkId chunk, uint64_t first_tile) const;
  // In host memory, where the new parameters of a run of tiles may lie until complete().
  std::byte* output_of(ChunkId chunk, uint64_t first_tile) const;
  // The old parameters of a run, where records hold only what is below them; else null. Of host memory.
  const std::byte* old_parameters_of(ChunkId chunk, uint64_t first_tile) const;

  // The same in device memory, with the chunk's parameters at `parameters`, the old ones and the new ones;
  // they are not its gradient's bytes.
  void update_into(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                   std::byte* parameters) const;
  // The same of a run that was copied there.
  void update_there(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, const TilePlaces& places) const;
  // Whether the workers do that.
  bool is_on_workers() const { return device_arithmetic_ == nullptr; }

 private:
  bool spreads(ChunkId chunk) const;
  struct Parts {
    std::byte* records;
    const std::byte* gradients;
    const std::byte* old;  // null where records are whole
    std::byte* output;
  };
  Parts parts_at(ChunkId chunk, uint64_t first_tile, std::byte* records, std::byte* output) const;
  // Every part from the first element on. `device` is null: the host computes.
  void run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, const Parts& parts,
           DeviceArithmetic* device = nullptr) const;

  const FlatSpace& space_;
  GradientSource& gradients_;
  ParamHome& home_;
  const RecordLayout layout_;
  const InstructionSet instruction_set_;
  DeviceArithmetic* const device_arithmetic_;  // null where the workers compute in device memory
  const bool dry_;                             // nothing is computed
  std::span<const OptimizerStep> steps_;
};

}  // namespace terrace
