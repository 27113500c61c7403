// MatrixTiles: the arithmetic of matrices (OptimizerKind::muon) on the tiles of a chunk. look() finds what
// the steps are made of, without a change of records; update() updates moments and masters by the steps that
// were made of it. Steps are in the memory of MatrixSteps. It moves nothing between tiers.
//
// A tile is looked at as two records: one of its moment, whose master counts for nothing, and one of its
// master without moments. So the kernels and the forms of all other optimizers serve. Where codes of two
// moments belong together, both are looked at, and the second one stays 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/function_ref.h>
#include <terrace/base/record_layout.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/update/matrix_steps.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

// Own elements [first, end) of a tensor in a chunk, counted from the chunk's first own element. They may end
// with padding.
struct MatrixElements {
  TensorId tensor{};
  ChunkId chunk{};
  uint64_t first = 0;
  uint64_t end = 0;
};

// Several threads may use it at once, for different tiles.
class MatrixTiles {
 public:
  // The references outlive this; the layout has a moment at least.
  MatrixTiles(const ChunkShards& shards, const RecordLayout& layout, InstructionSet instruction_set,
              const MatrixSteps& steps)
      : shards_(shards),
        layout_(layout),
        moments_{MasterForm::parameter, layout.has_codes() ? layout.moment_count : 1, layout.moment_type},
        instruction_set_(instruction_set),
        steps_(steps) {}

  // The constants of the next updates: the weights' parts, by tensor.
  void begin(std::span<const OptimizerStep> weights) { weights_ = weights; }
  // The next looks are at matrices of this group. Those of the group before have their steps already.
  void begin_look(uint32_t group) { group_ = group; }

  // `momentum` is the momentum's part of the tensor's step. `tiles` begins with the own tile `first_tile` of
  // the chunk, and its elements are `elements`.
  void look(const OptimizerStep& momentum, const TileRun& tiles, uint64_t first_tile,
            const MatrixElements& elements) const;
  void update(const OptimizerStep& momentum, const TileRun& tiles, uint64_t first_tile,
              const MatrixElements& elements) const;

 private:
  // One tile, or a part of one.
  struct Piece {
    TileRun tile;  // of its elements
    Bf16* steps;
    uint64_t step_count;  // of the elements; behind them there is padding
  };
  void for_each_piece(const TileRun& tiles, uint64_t first_tile, const MatrixElements& elements,
                      FunctionRef<void(const Piece&)> body) const;
  TileRun momentum_run(const Piece& piece, std::byte* record, float* made) const;
  void look_at_piece(const OptimizerStep& momentum, const Piece& piece) const;
  void update_piece(const OptimizerStep& momentum, const OptimizerStep& weights, const Piece& piece) const;

  const ChunkShards& shards_;
  const RecordLayout layout_;
  const RecordLayout moments_;  // what is looked at for the moment
  const InstructionSet instruction_set_;
  const MatrixSteps& steps_;
  uint32_t group_ = 0;
  std::span<const OptimizerStep> weights_;
};

}  // namespace terrace
