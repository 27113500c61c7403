// GatherComparison: the parameters that ranks have gathered, held against what their owners have. Every rank
// hashes each share of a chunk when it first uses the chunk after a gather. What differs has changed on its
// way, and nothing that is computed with it is that of the run.
//
// The step thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/offload/plan/run_context.h>

namespace terrace {

class GatherComparison {
 public:
  // `run` has ranks and outlives this.
  explicit GatherComparison(const RunContext& run);

  // Steps are counted from 1; OffloadOptions::compare_ranks_every_steps says which of them are compared.
  void begin_step(uint64_t count);
  void note_gather(ChunkId chunk);
  // The chunk's parameters are whole at this address. Every rank uses the same chunks in the same order.
  void note_use(ChunkId chunk, const std::byte* parameters);
  // Compares what was used since begin_step(), if the step is one to compare; every rank calls it. Throws
  // Error(corrupt) on all of them, which names the first chunk that differs and its step, `step`.
  void compare(uint64_t step);

 private:
  [[noreturn]] void refuse(std::span<const uint64_t> all, size_t first, uint64_t step) const;

  const RunContext& run_;
  const bool is_possible_;  // the host reaches the parameters
  bool is_due_ = false;
  std::vector<bool> is_new_;      // by chunk: gathered, and not hashed since
  std::vector<ChunkId> chunks_;   // in the order of their first uses
  std::vector<uint64_t> hashes_;  // for each of them one of every rank's share
};

}  // namespace terrace
