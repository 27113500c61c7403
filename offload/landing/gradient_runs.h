// GradientRuns: the progress of a step's gradients: for every tensor the number of micro-batches in which its
// gradient is complete, and for every chunk which of these have landed.
//
// The complete parts of a chunk land together, as runs of elements: a tensor's part of the chunk with the
// padding behind it, neighbours merged. Where leases write gradients, one micro-batch after the other, this
// is the whole chunk. Where micro-batches are open together (OffloadOptions::layer_major) or gradients are
// handed over, a chunk lands in parts. A tensor's micro-batches land in their order, so its sum is always
// made in that order.
//
// Where micro-batches are summed in groups, the sum of a group stays open until a gradient of another group
// lands, or the step's last micro-batch.
//
// Invariant, for every tensor of a chunk: landed <= completed <= micro-batches of a step. One thread uses it;
// it allocates in its constructor only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

struct GradientRun {
  uint64_t first_element = 0;  // index in the chunk
  uint64_t element_count = 0;
  bool is_first = false;  // nothing of the run has landed in this step before
  // Of the group whose sum is open, 1 + its number; 0 where none is, or there are no groups.
  uint32_t open_group = 0;
  uint64_t end() const { return first_element + element_count; }
};

// GradientLanding: the part of a chunk's gradient that lands in a micro-batch.
struct GradientLanding {
  ChunkId chunk{};
  uint32_t micro_batch = 0;
  // Ascending, with gaps between them or with different is_first or open_group.
  std::span<const GradientRun> runs;
  bool begins = false;     // nothing of the chunk has landed in this step before
  bool ends = false;       // all of it has landed in all micro-batches afterwards
  bool completes = false;  // all of it has landed in this micro-batch afterwards
  // The gradient is the sum of a whole group, of the accumulator's type; the micro-batch is the group's last.
  bool is_group_sum = false;
};

// AccumulationRules: how the gradients of a step are added up.
struct AccumulationRules {
  DataType type = DataType::fp32;  // the type of accumulators
  StepRounds rounds;
  bool layer_major = false;  // all micro-batches are open together
  bool accumulates = true;   // false: a chunk lands once, and its gradient keeps the type of its parameters
  DataType type_in(const Section& section) const { return accumulates ? type : section.type; }
  bool is_last(const GradientLanding& landing) const {
    return landing.micro_batch + 1 == rounds.micro_batches;
  }
  // True if landed zeros change the accumulator: zeros add nothing to the sum of earlier micro-batches, but
  // those that land first clear a run, and those of the last micro-batch complete the sum.
  bool changes_with_zeros(const GradientLanding& landing) const {
    return std::ranges::any_of(landing.runs, &GradientRun::is_first) || is_last(landing);
  }
};

// LandingSteps: what the landing of a run does to the sums of its accumulator, in the order of the members.
// Without groups of micro-batches there is the sum of the step alone, and "group" stands for it.
struct LandingSteps {
  bool clears = false;          // the sum of the step begins with zeros
  bool joins_before = false;    // the sum of the open group joins that of the step
  bool is_first_group = false;  // it is the step's first group, which takes the place of what is there
  bool clears_group = false;    // the sum of the group begins with zeros,
  bool replaces = false;        // or with the gradient; else the gradient is added to it
  bool passes_group = false;    // the gradient goes to the sum of the step instead
  bool joins_after = false;     // the sum of the group joins that of the step,
  bool is_only_group = false;   // which has no other, so that it takes the place of what is there
};
// `has_gradient`: false where zeros land.
LandingSteps landing_steps(const GradientRun& run, uint32_t micro_batch, bool has_gradient,
                           const StepRounds& rounds);
// The same where the sum of a whole group lands.
LandingSteps group_sum_steps(const GradientRun& run, uint32_t micro_batch, const StepRounds& rounds);

class GradientRuns {
 public:
  // `space` outlives this.
  // A micro-batch of this class is a round of `rounds`.
  GradientRuns(const FlatSpace& space, const StepRounds& rounds,
               UnusedGradients unused = UnusedGradients::zero);

  void begin_step();

  // Notes that the tensor's gradient of this micro-batch is complete. In the micro-batches since its last
  // complete one the gradient is zero.
  void complete(TensorId tensor, uint32_t micro_batch);
  bool is_complete(TensorId tensor, uint32_t micro_batch) const {
    return completed_[index_of(tensor)] > micro_batch;
  }
  // Notes that a micro-batch of the step has a gradient of the tensor, zero or not.
  void note_gradient(TensorId tensor) { has_gradient_[index_of(tensor)] = true; }
  // The tensors that have had one on any rank of several: a byte for each.
  void set_gradients(std::span<const uint8_t> have) { has_gradient_.assign(have.begin(), have.end()); }
  // True if the tensor, or any tensor of the chunk, has had a gradient in the step.
  bool has_gradient(TensorId tensor) const { return has_gradient_[index_of(tensor)]; }
  bool has_gradient(ChunkId chunk) const;
  // False if the update of the step leaves the trained chunk out, because none of its tensors has a gradient.
  bool is_updated(ChunkId chunk) const { return unused_ == UnusedGradients::zero || has_gradient(chunk); }
  // True if the gradients of all of the chunk's tensors are complete.
  bool is_complete(ChunkId chunk, uint32_t micro_batch) const;
  bool has_landed(ChunkId chunk, uint32_t micro_batch) const;
  // True if the chunk's tensor with this index is complete in more micro-batches than have landed.
  bool is_pending(ChunkId chunk, size_t index) const {
    return landed_[first_part_[index_of(chunk)] + index] <
           completed_[index_of(space_.tensors_of(chunk)[index])];
  }

  // Takes everything of the chunk that is complete and has not landed, and counts it as landed. The runs are
  // valid until the next call. `adds`: the landing has a gradient, and not zeros.
  GradientLanding take(ChunkId chunk, uint32_t micro_batch, bool adds);
  size_t most_runs() const { return runs_.capacity(); }  // the largest number in a landing

 private:
  const FlatSpace& space_;
  const StepRounds rounds_;
  const UnusedGradients unused_;
  std::vector<uint32_t> completed_;   // per tensor: micro-batches
  std::vector<bool> has_gradient_;    // per tensor: in this step
  std::vector<uint32_t> first_part_;  // per chunk, and one more: index into landed_; frozen chunks have none
  std::vector<uint32_t> landed_;      // per tensor of each chunk: micro-batches
  std::vector<uint32_t> open_group_;  // the same, with groups: as in GradientRun
  std::vector<GradientRun> runs_;     // the runs of the last landing
};

}  // namespace terrace
