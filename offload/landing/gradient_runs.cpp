#include <terrace/offload/landing/gradient_runs.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

// Micro-batches without a gradient leave a sum alone, and those before the first one count as zeros.
LandingSteps landing_steps(const GradientRun& run, uint32_t micro_batch, bool has_gradient,
                           const StepRounds& rounds) {
  LandingSteps steps;
  if (!rounds.has_groups()) {
    steps.replaces = run.is_first && micro_batch == 0 && has_gradient;
    steps.clears = run.is_first && !steps.replaces;
    return steps;
  }
  const bool is_last = micro_batch + 1 == rounds.micro_batches;
  const uint32_t group = micro_batch / rounds.group;
  const bool opens = has_gradient && run.open_group != group + 1;
  steps.clears = run.is_first && !(has_gradient && group == 0);
  steps.joins_before = run.open_group > 0 && (has_gradient ? opens : is_last);
  steps.is_first_group = run.open_group == 1;
  steps.replaces = opens && micro_batch % rounds.group == 0;
  steps.clears_group = opens && !steps.replaces;
  steps.joins_after = has_gradient && is_last;
  steps.is_only_group = group == 0;
  return steps;
}

LandingSteps group_sum_steps(const GradientRun& run, uint32_t micro_batch, const StepRounds& rounds) {
  LandingSteps steps;
  steps.replaces = micro_batch < rounds.group;
  steps.clears = run.is_first && !steps.replaces;
  steps.joins_before = run.open_group > 0;
  steps.is_first_group = run.open_group == 1;
  steps.passes_group = true;
  return steps;
}

GradientRuns::GradientRuns(const FlatSpace& space, const StepRounds& rounds, UnusedGradients unused)
    : space_(space),
      rounds_(rounds),
      unused_(unused),
      completed_(space.tensor_count()),
      has_gradient_(space.tensor_count()) {
  size_t most = 0;
  first_part_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    const size_t parts = space.section_of(chunk).trainable ? space.tensors_of(chunk).size() : 0;
    first_part_.push_back(first_part_.back() + static_cast<uint32_t>(parts));
    most = std::max(most, parts);
  }
  landed_.resize(first_part_.back());
  if (rounds_.has_groups()) open_group_.resize(first_part_.back());
  runs_.reserve(most);
}

void GradientRuns::begin_step() {
  std::fill(completed_.begin(), completed_.end(), 0);
  has_gradient_.assign(has_gradient_.size(), false);
  std::fill(landed_.begin(), landed_.end(), 0);
  std::fill(open_group_.begin(), open_group_.end(), 0);
}

void GradientRuns::complete(TensorId tensor, uint32_t micro_batch) {
  TERRACE_ASSERT(
      completed_[index_of(tensor)] <= micro_batch && micro_batch < rounds_.count(),
      fmt::format("the gradient of {} is complete in {} micro-batches and cannot become so in number {}",
                  space_.tensor(tensor).name, completed_[index_of(tensor)], micro_batch));
  completed_[index_of(tensor)] = micro_batch + 1;
}

bool GradientRuns::has_gradient(ChunkId chunk) const {
  return std::ranges::any_of(space_.tensors_of(chunk),
                             [this](TensorId tensor) { return has_gradient(tensor); });
}

bool GradientRuns::is_complete(ChunkId chunk, uint32_t micro_batch) const {
  return std::ranges::all_of(space_.tensors_of(chunk),
                             [&](TensorId tensor) { return is_complete(tensor, micro_batch); });
}

bool GradientRuns::has_landed(ChunkId chunk, uint32_t micro_batch) const {
  const uint32_t first = first_part_[index_of(chunk)], end = first_part_[index_of(chunk) + 1];
  return std::all_of(landed_.begin() + first, landed_.begin() + end,
                     [micro_batch](uint32_t landed) { return landed > micro_batch; });
}

GradientLanding GradientRuns::take(ChunkId chunk, uint32_t micro_batch, bool adds) {
  const std::span<const TensorId> tensors = space_.tensors_of(chunk);
  const uint32_t first_part = first_part_[index_of(chunk)];
  const std::span<uint32_t> landed = std::span(landed_).subspan(first_part, tensors.size());
  const uint32_t group_afterwards = rounds_.last_of(micro_batch) / rounds_.group + 1;
  GradientLanding landing{chunk, micro_batch, {}, true, true, true};
  runs_.clear();
  uint64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t end = space_.end_of_part(chunk, i);
    const uint32_t completed = completed_[index_of(tensors[i])];
    const bool is_first = landed[i] == 0;
    const uint32_t open_group = open_group_.empty() ? 0 : open_group_[first_part + i];
    landing.begins = landing.begins && is_first;
    if (landed[i] < completed) {
      if (!runs_.empty() && runs_.back().end() == begin && runs_.back().is_first == is_first &&
          runs_.back().open_group == open_group) {
        runs_.back().element_count += end - begin;
      } else {
        runs_.push_back({begin, end - begin, is_first, open_group});
      }
      landed[i] = completed;
      if (adds && !open_group_.empty()) open_group_[first_part + i] = group_afterwards;
    }
    landing.ends = landing.ends && landed[i] == rounds_.count();
    landing.completes = landing.completes && landed[i] > micro_batch;
    begin = end;
  }
  landing.runs = runs_;
  return landing;
}

}  // namespace terrace
