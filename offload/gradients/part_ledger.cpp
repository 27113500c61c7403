#include <terrace/offload/gradients/part_ledger.h>

#include <algorithm>

namespace terrace {

PartLedger::PartLedger(const ChunkShards& shards, const StepRounds& rounds)
    : shards_(shards), rounds_(rounds), ended_(rounds.ranks) {
  const FlatSpace& space = shards.space();
  first_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    const size_t count = space.section_of(chunk).trainable ? space.tensors_of(chunk).size() : 0;
    first_.push_back(first_.back() + static_cast<uint32_t>(count));
  }
  tensors_.resize(first_.back());
}

void PartLedger::begin_step() {
  std::ranges::fill(tensors_, Tensor{});
  std::ranges::fill(ended_, 0);
}

std::span<PartLedger::Tensor> PartLedger::tensors_of(ChunkId chunk) {
  const uint32_t first = first_[index_of(chunk)];
  return std::span(tensors_).subspan(first, first_[index_of(chunk) + 1] - first);
}

uint64_t PartLedger::begin_of(ChunkId chunk, size_t index) const {
  return index == 0 ? 0 : shards_.end_of_part(chunk, index - 1);
}

bool PartLedger::is_within(const OwnPart& part, size_t index) const {
  const uint64_t begin = begin_of(part.chunk, index), end = shards_.end_of_part(part.chunk, index);
  return begin < end && begin >= part.first_element && end <= part.first_element + part.element_count;
}

bool PartLedger::has_ended(uint32_t micro_batch) const {
  return ended_[micro_batch % rounds_.ranks] > micro_batch / rounds_.ranks;
}

bool PartLedger::have_all_ended() const {
  for (uint32_t rank = 0; rank < rounds_.ranks; ++rank) {
    if (rounds_.has(ended_[rank], rank) && ended_[rank] < rounds_.count()) return false;
  }
  return true;
}

// Micro-batches that have ended without a part are absent.
bool PartLedger::is_due(const OwnPart& part, std::span<const OwnPart> others) {
  const std::span<Tensor> tensors = tensors_of(part.chunk);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_within(part, i)) continue;
    const auto has_come = [&](uint32_t micro_batch) {
      return std::ranges::any_of(others, [&](const OwnPart& other) {
        return other.chunk == part.chunk && other.micro_batch == micro_batch && is_within(other, i);
      });
    };
    uint32_t& resolved = tensors[i].resolved;
    while (resolved < part.micro_batch && has_ended(resolved) && !has_come(resolved)) ++resolved;
    if (resolved != part.micro_batch) return false;
  }
  return true;
}

void PartLedger::add_run(Tensor& tensor, uint64_t begin, uint64_t end, std::vector<GradientRun>& runs) const {
  const bool is_first = !tensor.has_landed;
  if (!runs.empty() && runs.back().end() == begin && runs.back().is_first == is_first &&
      runs.back().open_group == tensor.open_group) {
    runs.back().element_count += end - begin;
  } else {
    runs.push_back({begin, end - begin, is_first, tensor.open_group});
  }
  tensor.has_landed = true;
}

GradientLanding PartLedger::take(const OwnPart& part, std::vector<GradientRun>& runs) {
  GradientLanding landing{part.chunk, part.micro_batch, {}, true, true, true};
  runs.clear();
  const std::span<Tensor> tensors = tensors_of(part.chunk);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t begin = begin_of(part.chunk, i), end = shards_.end_of_part(part.chunk, i);
    if (begin >= end) continue;
    landing.begins = landing.begins && !tensors[i].has_landed;
    if (is_within(part, i)) {
      add_run(tensors[i], begin, end, runs);
      tensors[i].resolved = part.micro_batch + 1;
      if (rounds_.has_groups()) tensors[i].open_group = part.micro_batch / rounds_.group + 1;
    }
    landing.ends = landing.ends && tensors[i].resolved == rounds_.micro_batches;
    landing.completes = landing.completes && tensors[i].resolved > part.micro_batch;
  }
  landing.runs = runs;
  return landing;
}

GradientLanding PartLedger::take_rest(ChunkId chunk, std::vector<GradientRun>& runs) {
  GradientLanding landing{chunk, rounds_.micro_batches - 1, {}, true, true, true};
  runs.clear();
  const std::span<Tensor> tensors = tensors_of(chunk);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t begin = begin_of(chunk, i), end = shards_.end_of_part(chunk, i);
    if (begin >= end) continue;
    landing.begins = landing.begins && !tensors[i].has_landed;
    if (tensors[i].resolved == rounds_.micro_batches) continue;
    add_run(tensors[i], begin, end, runs);
    tensors[i].resolved = rounds_.micro_batches;
  }
  landing.runs = runs;
  return landing;
}

}  // namespace terrace
