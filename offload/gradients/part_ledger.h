// PartLedger: which micro-batches of every tensor in the own tiles have been added, are absent, or are still
// to come, over all ranks. It says which part is due: the one behind which nothing earlier can come any more.
// A rank hands over in its order, so what has not come when its micro-batch ends is absent.
//
// One thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/options/step_rounds.h>

namespace terrace {

// The gradient of a run of whole tensors' parts in the own tiles, of one micro-batch.
struct OwnPart {
  ChunkId chunk{};
  uint32_t micro_batch = 0;
  uint64_t first_element = 0;  // in the own tiles
  uint64_t element_count = 0;
};

class PartLedger {
 public:
  // `shards` outlives this.
  PartLedger(const ChunkShards& shards, const StepRounds& rounds);

  void begin_step();
  // The rank has ended its next micro-batch: what it hands over from now on belongs to later ones.
  void end_micro_batch(uint32_t rank) { ++ended_[rank]; }
  // True if every rank has ended all of its micro-batches.
  bool have_all_ended() const;

  // True if the part can be added now. `others` are the parts that have come and are not taken; they may hold
  // earlier ones.
  bool is_due(const OwnPart& part, std::span<const OwnPart> others);
  // Takes a part that is due: its landing, with runs of the own tiles in `runs`.
  GradientLanding take(const OwnPart& part, std::vector<GradientRun>& runs);
  // When all have ended and nothing has come that is not taken: what is left of the chunk, as zeros of the
  // last micro-batch; without runs where nothing is.
  GradientLanding take_rest(ChunkId chunk, std::vector<GradientRun>& runs);

 private:
  struct Tensor {
    uint32_t resolved = 0;  // micro-batches that are added or absent
    bool has_landed = false;
    uint32_t open_group = 0;  // as in GradientRun
  };
  std::span<Tensor> tensors_of(ChunkId chunk);
  // The index-th tensor's elements in the own tiles.
  uint64_t begin_of(ChunkId chunk, size_t index) const;
  bool has_ended(uint32_t micro_batch) const;
  void add_run(Tensor& tensor, uint64_t begin, uint64_t end, std::vector<GradientRun>& runs) const;
  bool is_within(const OwnPart& part, size_t index) const;

  const ChunkShards& shards_;
  const StepRounds rounds_;
  std::vector<uint32_t> first_;  // per chunk, and one more: index into tensors_
  std::vector<Tensor> tensors_;  // of every trained chunk
  std::vector<uint32_t> ended_;  // by rank: micro-batches
};

}  // namespace terrace
