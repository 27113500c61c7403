// GradientRuns: how far the gradients of a step have come: of every tensor, in how many micro-batches its
// gradient is complete, and of every chunk, what of that has landed.
//
// What of a chunk is complete lands together, as runs of elements: a tensor's part of the chunk with the
// padding behind it, neighbours merged. Where micro-batches come one after the other that is the whole chunk;
// where they are open together (OffloadOptions::layer_major) a chunk that holds tensors of two layers lands
// in parts. A tensor's micro-batches land in their order, so that its sum is always made in that order.
//
// For every tensor of a chunk: landed <= completed <= micro-batches of a step. One thread; it allocates in
// its constructor only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/memory/space/flat_space.h>

namespace terrace {

struct GradientRun {
  uint64_t first_element = 0;  // in the chunk
  uint64_t element_count = 0;
  bool is_first = false;  // nothing of it has landed in this step before
  uint64_t end() const { return first_element + element_count; }
};

// What lands of a chunk's gradient in a micro-batch.
struct GradientLanding {
  ChunkId chunk{};
  uint32_t micro_batch = 0;
  std::span<const GradientRun> runs;  // ascending, with gaps between them or with different is_first
  bool begins = false;                // nothing of the chunk has landed in this step before
  bool ends = false;                  // all of it has landed in all micro-batches afterwards
};

// How the gradients of a step are added up.
struct AccumulationRules {
  DataType type = DataType::fp32;  // of accumulators
  uint32_t micro_batches = 1;
  bool layer_major = false;  // all micro-batches are open together
  bool is_last(const GradientLanding& landing) const { return landing.micro_batch + 1 == micro_batches; }
  // Zeros that land add nothing to what earlier micro-batches have left. The first of a run clear it, and the
  // last complete the sum.
  bool changes_with_zeros(const GradientLanding& landing) const {
    return std::ranges::any_of(landing.runs, &GradientRun::is_first) || is_last(landing);
  }
};

class GradientRuns {
 public:
  // `space` outlives this.
  GradientRuns(const FlatSpace& space, uint32_t micro_batches);

  void begin_step();

  // The tensor's gradient of this micro-batch is complete. In those between the last that was and this one it
  // is zero.
  void complete(TensorId tensor, uint32_t micro_batch);
  bool is_complete(TensorId tensor, uint32_t micro_batch) const {
    return completed_[index_of(tensor)] > micro_batch;
  }
  // All of the chunk's tensors.
  bool is_complete(ChunkId chunk, uint32_t micro_batch) const;
  bool has_landed(ChunkId chunk, uint32_t micro_batch) const;
  // Of the chunk's tensor of this index: it is complete further than it has landed.
  bool is_pending(ChunkId chunk, size_t index) const {
    return landed_[first_part_[index_of(chunk)] + index] <
           completed_[index_of(space_.tensors_of(chunk)[index])];
  }

  // Everything of the chunk that is complete and has not landed: it has from now on. The runs are valid until
  // the next call.
  GradientLanding take(ChunkId chunk, uint32_t micro_batch);
  size_t most_runs() const { return runs_.capacity(); }  // of a landing

 private:
  uint64_t end_of_part(ChunkId chunk, size_t index) const;

  const FlatSpace& space_;
  const uint32_t micro_batches_;
  std::vector<uint32_t> completed_;   // per tensor: micro-batches
  std::vector<uint32_t> first_part_;  // per chunk, and one more: of landed_; frozen chunks have none
  std::vector<uint32_t> landed_;      // per tensor of each chunk: micro-batches
  std::vector<GradientRun> runs_;     // of the last landing
};

}  // namespace terrace
