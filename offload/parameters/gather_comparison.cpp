#include <terrace/offload/parameters/gather_comparison.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/base/assert.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/offload/watch/watched_votes.h>

namespace terrace {

GatherComparison::GatherComparison(const RunContext& run)
    : run_(run),
      is_possible_(!run.options.dry && run.options.hooks.device_arithmetic == nullptr &&
                   run.options.compare_ranks_every_steps > 0),
      is_new_(is_possible_ ? run.space.chunk_count() : 0) {}

void GatherComparison::begin_step(uint64_t count) {
  is_due_ = is_possible_ && count % run_.options.compare_ranks_every_steps == 0;
  chunks_.clear();
  hashes_.clear();
}

void GatherComparison::note_gather(ChunkId chunk) {
  if (is_possible_) is_new_[index_of(chunk)] = true;
}

void GatherComparison::note_use(ChunkId chunk, const std::byte* parameters) {
  if (!is_due_ || !is_new_[index_of(chunk)]) return;
  is_new_[index_of(chunk)] = false;
  chunks_.push_back(chunk);
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  for (uint32_t owner = 0; owner < run_.options.ranks; ++owner) {
    const ShardTiles share = run_.shards.of(chunk, owner);
    hashes_.push_back(
        checksum_of({parameters + share.first_element() * element_bytes, share.elements() * element_bytes}));
  }
}

// All hashes travel only where their digests differ.
void GatherComparison::compare(uint64_t step) {
  if (!is_due_) return;
  is_due_ = false;
  const WatchedVotes ranks(RankVotes(run_.options.hooks.communicator), run_.watch);
  constexpr std::string_view kHashes = "the hashes of parameters";
  const std::array<uint64_t, 2> digest = {checksum_of(std::as_bytes(std::span(chunks_))),
                                          checksum_of(std::as_bytes(std::span(hashes_)))};
  const std::vector<std::array<uint64_t, 2>> digests = ranks.of_all(kHashes, digest);
  if (std::ranges::all_of(digests, [&](const auto& other) { return other == digest; })) return;
  TERRACE_ASSERT(std::ranges::all_of(digests, [&](const auto& other) { return other[0] == digest[0]; }),
                 "all ranks use the same chunks in the same order");
  const std::vector<uint64_t> all = ranks.of_all(kHashes, std::span<const uint64_t>(hashes_));
  for (size_t i = 0; i < hashes_.size(); ++i) {
    const uint64_t right = all[i % ranks.count() * hashes_.size() + i];
    for (uint32_t r = 0; r < ranks.count(); ++r) {
      if (all[r * hashes_.size() + i] != right) refuse(all, i, step);
    }
  }
}

void GatherComparison::refuse(std::span<const uint64_t> all, size_t first, uint64_t step) const {
  const uint32_t owner = static_cast<uint32_t>(first % run_.options.ranks);
  std::vector<uint32_t> wrong;
  for (uint32_t r = 0; r < run_.options.ranks; ++r) {
    if (all[r * hashes_.size() + first] != all[owner * hashes_.size() + first]) wrong.push_back(r);
  }
  const ChunkId chunk = chunks_[first / run_.options.ranks];
  const std::span<const TensorId> held = run_.space.tensors_of(chunk);
  throw Error(ErrorKind::corrupt,
              {fmt::format("parameters changed on their way between ranks in step {}", step),
               fmt::format("chunk {} ({} to {})", index_of(chunk), run_.space.tensor(held.front()).name,
                           run_.space.tensor(held.back()).name),
               fmt::format("what {} got of the share of rank {} is not what that rank has",
                           text_of_ranks(wrong), owner),
               "go on from the last commit or checkpoint, and look at the memory of these hosts and at the "
               "network between them"});
}

}  // namespace terrace
