// GradientExchange: how the gradients of a landing come to the ranks that own them. Every rank sends each
// owner the part that lies in the owner's tiles, as it is, and gets the parts of its own tiles from all. The
// parts of a round are added in the order of their micro-batches, those of ranks without one left out, so
// that an owner adds what one rank would add, in the same order. The owner's sum is fp32 from the wire on, or
// of the accumulator's type: no library adds anything.
//
// Every rank lands the same runs of the same chunks in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/comm/communicator.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/homes/gradient_staging.h>
#include <terrace/offload/options/step_rounds.h>

namespace terrace {

class GradientExchange final : public GradientStaging {
 public:
  struct Ranks {
    const ChunkShards& shards;
    Communicator& communicator;
    StepRounds rounds;
    bool overlaps = true;  // false: land() waits for the exchange
    bool dry = false;
  };
  // A slot has `memory` for a chunk's gradient, and `incoming` for the largest own shard once for every rank.
  GradientExchange(const Ranks& ranks, Device& device, DeviceCache& cache, std::span<std::byte* const> memory,
                   std::span<std::byte* const> incoming, size_t most_runs);
  // Waits for what is under way.
  ~GradientExchange() override;

  bool land_from(const GradientLanding& landing, const HandedPart& part) override;
  GradientLanding own_part(const GradientLanding& landing) override;

 private:
  struct Parts {
    std::byte* incoming = nullptr;   // one own shard for every rank
    CacheSlot* source = nullptr;     // whose bytes are on their way; null: none
    DeviceCopy copied;               // out of the device
    DeviceCopy arrived;              // from all ranks
    std::vector<CommPart> to, from;  // by rank; none in a dry run, where one part stands for all
  };
  // The elements from the first of the runs to the last that lie in the tiles: a part, with what lies between
  // its runs.
  struct Span {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t elements() const { return end - begin; }
  };
  static Span part_in(std::span<const GradientRun> runs, const ShardTiles& tiles);
  // The elements of all ranks' parts together.
  uint64_t elements_sent(ChunkId chunk, std::span<const GradientRun> runs) const;
  void fill_parts(size_t slot, const ShardTiles& own, const Span& mine);
  DeviceCopy& begin_leaving(size_t slot, CacheSlot& source) override;
  void left_device(size_t slot) override;
  bool has_arrived(size_t slot) const override { return parts_[slot].arrived.done(); }
  void add_landing(size_t slot, Add add) override;

  const ChunkShards& shards_;
  Communicator& ranks_;
  const StepRounds rounds_;
  const bool overlaps_;
  const bool dry_;
  std::vector<Parts> parts_;  // by slot
  std::vector<GradientRun> own_runs_;
  uint64_t sent_ = 0;
};

}  // namespace terrace
