// MatrixUpdate: the matrices of an update (OptimizerKind::muon): what they are updated with, and in which
// turn each chunk is updated. Before a turn the steps of its group are made; in the turn behind the last
// group come the chunks without matrices. It looks at no records itself.
//
// The step thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/update/matrix_steps.h>
#include <terrace/offload/update/matrix_tiles.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

class MatrixUpdate {
 public:
  // Takes MemoryPlan::matrix_bytes from the arena. `run` and `runs` outlive this. Throws Error(config) where
  // the states of matrices are in device memory that the processor does not reach.
  MatrixUpdate(const RunContext& run, const GradientRuns& runs, HostArena& arena);

  bool empty() const { return groups().empty(); }
  std::span<const MatrixGroup> groups() const { return steps_.groups(); }
  // The turn of a chunk: the place of the last group that has a matrix in it, or the number of groups.
  uint32_t turn_of(ChunkId chunk) const { return turns_[index_of(chunk)]; }

  // Begins an update with the settings of all groups.
  void begin(std::span<const OptimizerSettings> settings);
  // Sets the constants of a matrix. Those of the momentum are returned.
  OptimizerStep set_constants(TensorId tensor, uint64_t step, float gradient_scale);
  // Before the chunks of a group are looked at, and when all have been: makes the steps of its matrices.
  void begin_look(uint32_t group) { tiles_.begin_look(group); }
  void make_steps(uint32_t group);

  const MatrixTiles& tiles() const { return tiles_; }
  const RankBytes& moved() const { return steps_.moved(); }

 private:
  const RunContext& run_;
  const GradientRuns& runs_;
  MatrixSteps steps_;
  MatrixTiles tiles_;
  std::vector<uint32_t> turns_;  // by ChunkId
  std::vector<OptimizerSettings> settings_;
  std::vector<OptimizerStep> weights_;  // by tensor
};

}  // namespace terrace
