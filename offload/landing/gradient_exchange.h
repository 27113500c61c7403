// GradientExchange: how the gradients of a landing come to the ranks that own them. Every rank sends each
// owner the part that lies in the owner's tiles, and an owner adds the parts of a round in the order of their
// micro-batches, those of ranks without one left out: what one rank would add, in the same order. The owner's
// sum is fp32 from the wire on, or of the accumulator's type: no library adds anything.
//
// ExchangeWithAll: every part goes from the rank that made it to its owner. Where groups of micro-batches are
// computed on one host, ExchangeByHosts (exchange_by_hosts.h) takes its place.
//
// Every rank lands the same runs of the same chunks in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/landing/gradient_staging.h>
#include <terrace/offload/options/step_rounds.h>

namespace terrace {

class GradientExchange : public GradientStaging {
 public:
  struct Ranks {
    const ChunkShards& shards;
    Communicator& communicator;
    StepRounds rounds;
    bool overlaps = true;  // false: land() waits for the exchange
    bool dry = false;
  };

  // Waits for the copies out of the device.
  ~GradientExchange() override;

  bool land_from(const GradientLanding& landing, const HandedPart& part) final;
  GradientLanding own_part(const GradientLanding& landing) override;

 protected:
  // The elements from the first of the runs to the last that lie in the tiles: a part, with what lies between
  // its runs.
  struct Span {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t elements() const { return end - begin; }
    // Where it begins among the elements of the tiles.
    uint64_t offset_in(const ShardTiles& tiles) const {
      return elements() == 0 ? 0 : begin - tiles.first_element();
    }
  };
  // A slot has `memory` for a chunk's gradient.
  GradientExchange(const Ranks& ranks, Device& device, DeviceCache& cache, std::span<std::byte* const> memory,
                   size_t most_runs);

  static Span part_in(std::span<const GradientRun> runs, const ShardTiles& tiles);
  // The elements of all ranks' parts together, and of those of the group's.
  uint64_t elements_of_all(ChunkId chunk, std::span<const GradientRun> runs) const;
  uint64_t elements_of(const RankGroup& group, ChunkId chunk, std::span<const GradientRun> runs) const;
  // `asked`: the exchanges of the lane before this one.
  CommNote next_note(ChunkId chunk, uint64_t& asked);
  // Adds the gradient of a micro-batch, or the sum of the group that ends with it, to the own part of a
  // landing, which is `own_runs_`.
  enum class Added : uint8_t { gradient, group_sum };
  void add_one(Added what, const Slot& slot, uint32_t micro_batch, const std::byte* gradient, bool is_last,
               Add add);

  // The name of what is exchanged, for waits.
  static constexpr const char* kExchanged = "gradients";

  // Sends the landing's parts behind `copied`.
  virtual void send(size_t slot, const Event& copied) = 0;

  const ChunkShards& shards_;
  Communicator& ranks_;
  const StepRounds rounds_;
  const HostLayout hosts_;
  const bool overlaps_;
  const bool dry_;
  std::vector<GradientRun> own_runs_;

 private:
  struct Source {
    CacheSlot* slot = nullptr;  // whose bytes are on their way; null: none
    DeviceCopy copied;          // out of the device
  };
  DeviceCopy& begin_leaving(size_t slot, CacheSlot& source) final;
  void left_device(size_t slot) final;

  std::vector<Source> sources_;  // by slot
};

class ExchangeWithAll final : public GradientExchange {
 public:
  // `incoming` of a slot has room for the largest own shard once for every rank.
  ExchangeWithAll(const Ranks& ranks, Device& device, DeviceCache& cache, std::span<std::byte* const> memory,
                  std::span<std::byte* const> incoming, size_t most_runs);
  // Waits for what is under way.
  ~ExchangeWithAll() override;

 private:
  struct Parts {
    std::byte* incoming = nullptr;   // one own shard for every rank
    DeviceCopy arrived;              // from all ranks
    std::vector<CommPart> to, from;  // by rank; none in a dry run, where one part stands for all
  };
  void send(size_t slot, const Event& copied) override;
  void count_bytes(const Slot& slot);
  void fill_parts(size_t slot);
  bool has_arrived(size_t slot) override { return parts_[slot].arrived.done(); }
  void add_landing(size_t slot, Add add) override;

  std::vector<Parts> parts_;  // by slot
  uint64_t sent_ = 0;
};

}  // namespace terrace
