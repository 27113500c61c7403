// The parts of a landing: the elements of it that lie in the tiles of one owner. Every rank sends each owner
// its part, and an owner adds the parts of a round in the order of their micro-batches, those of ranks
// without one left out: what one rank would add, in the same order. The owner's sum is fp32 from the wire on,
// or of the accumulator's type: no library adds anything.
//
// All exchanges (ExchangeWithAll, ExchangeOnDevices, ExchangeByHosts) are made of this. Every rank lands the
// same runs of the same chunks in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/landing/rank_sum.h>
#include <terrace/offload/options/step_rounds.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// The name of what is exchanged, for waits.
inline constexpr const char* kExchangedGradients = "gradients";

// PartSpan: the elements from the first of the runs to the last that lie in an owner's tiles, with what lies
// between the runs.
struct PartSpan {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t elements() const { return end - begin; }
  // Where it begins among the elements of the tiles.
  uint64_t offset_in(const ShardTiles& tiles) const {
    return elements() == 0 ? 0 : begin - tiles.first_element();
  }
};
PartSpan part_in(std::span<const GradientRun> runs, const ShardTiles& tiles);

// ExchangeRanks: the ranks that exchange gradients. It owns nothing.
struct ExchangeRanks {
  const ChunkShards& shards;
  Communicator& communicator;
  StepWatch& watch;
  StepRounds rounds;
  bool overlaps = true;  // false: send() waits for the exchange
  bool dry = false;

  uint32_t rank() const { return communicator.rank(); }
  uint32_t size() const { return communicator.size(); }
  HostLayout hosts() const { return rounds.layout(); }
  uint32_t own_host() const { return hosts().host_of(rank()); }
  uint64_t element_bytes(ChunkId chunk) const { return bytes_of(shards.space().section_of(chunk).type); }
  // The elements of all ranks' parts together, and of those of the group's.
  uint64_t elements_of_all(ChunkId chunk, std::span<const GradientRun> runs) const;
  uint64_t elements_of(const RankGroup& group, ChunkId chunk, std::span<const GradientRun> runs) const;
  // What moves where every part of a landing goes from the rank that made it to its owner.
  RankBytes bytes_with_all(const StagedLanding& staged) const;
  // `asked`: the exchanges of the lane before this one.
  CommNote next_note(ChunkId chunk, uint64_t& asked) const;
};

// OwnParts: what an owner adds of a landing. It allocates in its constructor only.
class OwnParts {
 public:
  // `most_runs` is the largest number of runs in a landing.
  OwnParts(const ExchangeRanks& ranks, size_t most_runs);

  // As RankSum::own_part().
  GradientLanding of(const GradientLanding& landing);

  // Begins the additions of a landing, and adds the gradient of one micro-batch after the other, or the sum
  // of the group that ends with it.
  enum class Added : uint8_t { gradient, group_sum };
  void begin(const StagedLanding& staged);
  void add(Added what, uint32_t micro_batch, const std::byte* gradient, bool is_last, RankSum::Add add);
  // All of a landing, where the gradients of all ranks that have one in the round are there. `part_of` says
  // where that of a rank lies, from the first own element on.
  void add_all(const StagedLanding& staged, FunctionRef<const std::byte*(uint32_t rank)> part_of,
               RankSum::Add add);

 private:
  void find_own(const GradientLanding& landing, std::vector<GradientRun>& runs) const;

  const ExchangeRanks ranks_;
  const bool closes_groups_;  // no group stays open from round to round
  GradientLanding adding_;
  std::vector<GradientRun> adding_runs_;
  std::vector<GradientRun> own_runs_;  // of the last own part
};

}  // namespace terrace
