// TileUpdate: the arithmetic of an update on the tiles of one chunk. It finds the tiles' gradients, their
// settings and the place of their new parameters. It moves nothing between tiers and waits for nothing.
// Matrices are updated by MatrixTiles.
//
// New parameters made on the host go straight into the chunk's home slot, if it has one. Without one they
// overwrite the chunk's gradient, which is spent: element by element where both have one type; under a wider
// gradient each tile's parameters go to the start of its gradient's bytes, and complete() draws them
// together. Those of the caller's tensors are made where the program has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/function_ref.h>
#include <terrace/base/record_layout.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_arithmetic.h>
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/parameters/param_home.h>
#include <terrace/offload/update/matrix_tiles.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

// UpdateConstants: what an update computes with, besides the state.
struct UpdateConstants {
  std::span<const OptimizerStep> groups;   // by parameter group
  std::span<const OptimizerStep> tensors;  // by tensor, where these count their own steps; else empty
  const MatrixTiles* matrices = nullptr;   // where tensors are updated as matrices
};

// TilePlaces: the addresses of a run of tiles in device memory, each of the run's first element. `parameters`
// holds first the old parameters, where the records need them, then the new ones.
struct TilePlaces {
  std::byte* records = nullptr;
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;
};

class TileUpdate {
 public:
  // New parameters are rounded to `parameter_bits` (OffloadOptions), where these are above 0.
  TileUpdate(const ChunkShards& shards, GradientSource& gradients, ParamHome& home,
             const RecordLayout& layout, uint32_t parameter_bits, InstructionSet instruction_set,
             DeviceArithmetic* device_arithmetic, bool dry);

  // Begins an update; what `constants` refer to stays until it is over. The constants of a tensor may still
  // be set before the first of its chunks is updated.
  void begin(const UpdateConstants& constants) { constants_ = constants; }

  // Updates a run of tiles whose records are at `records`. Several threads may update runs at once. Each tile
  // is updated once, since its gradient is overwritten.
  void update(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const;
  // Looks at a run of tiles of matrices (MatrixTiles), also at one in device memory that the workers reach.
  // Records and gradients stay as they are.
  void look(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const;
  // Returns the address of the chunk's new parameters, contiguous, after every tile was updated. `run_tiles`
  // is the length of runs that were updated elsewhere and came back, each to output_of() of its first tile.
  std::byte* complete(ChunkId chunk, uint64_t run_tiles = 1) const;
  uint64_t parameter_tile_bytes(ChunkId chunk) const {
    return kTileElements * bytes_of(space_.section_of(chunk).type);
  }
  uint64_t gradient_tile_bytes(ChunkId chunk) const {
    return kTileElements * bytes_of(gradients_.type(chunk));
  }
  // The gradients of a run of tiles, in host memory.
  const std::byte* gradients_of(ChunkId chunk, uint64_t first_tile) const;
  // The address in host memory for the new parameters of a run of tiles until complete().
  std::byte* output_of(ChunkId chunk, uint64_t first_tile) const;
  // The old parameters of a run, in host memory, where records are compact; else null.
  const std::byte* old_parameters_of(ChunkId chunk, uint64_t first_tile) const;

  // Updates a run of tiles in device memory. `parameters` is the address of the chunk's parameters, old and
  // then new; they must not overlap its gradient.
  void update_into(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                   std::byte* parameters) const;
  // Updates a run of tiles that was copied to device memory.
  void update_there(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, const TilePlaces& places) const;
  // True if the workers compute in device memory.
  bool is_on_workers() const { return device_arithmetic_ == nullptr; }

 private:
  bool spreads(ChunkId chunk) const;
  void update_callers(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const;
  struct Parts {
    std::byte* records;
    const std::byte* gradients;
    const std::byte* old;  // not looked at where records are whole
    std::byte* output;
  };
  Parts parts_at(ChunkId chunk, uint64_t first_tile, std::byte* records, std::byte* output) const;
  // Updates tiles whose parts all begin with the run's first element. If `device` is null, the host computes.
  void run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, const Parts& parts,
           DeviceArithmetic* device = nullptr) const;
  // Own elements of a chunk that are updated alike. Those of matrices, and those whose moments are codes, are
  // of one tensor; by the rounding place of own element 0 such codes are rounded (moment_codes.h).
  struct Elements {
    uint64_t first, end;
    uint64_t rounding_place;
    TensorId tensor;
  };
  // A run that begins with the first of `records` and `gradients`; of no elements and without parameters.
  TileRun run_of(ChunkId chunk, std::byte* records, const std::byte* gradients) const;
  void for_each_run(ChunkId chunk,
                    FunctionRef<void(const OptimizerStep& step, const Elements& alike)> body) const;

  const ChunkShards& shards_;
  const FlatSpace& space_;
  GradientSource& gradients_;
  ParamHome& home_;
  const RecordLayout layout_;
  const uint32_t parameter_bits_;
  const InstructionSet instruction_set_;
  DeviceArithmetic* const device_arithmetic_;  // null where the workers compute in device memory
  const bool dry_;                             // nothing is computed
  UpdateConstants constants_;
};

}  // namespace terrace
