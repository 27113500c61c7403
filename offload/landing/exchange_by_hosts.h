// ExchangeByHosts: the exchange of gradients where every group of micro-batches is computed on one host in
// one round (StepRounds::sums_on_hosts). On each host the ranks that have the owner's place sum the groups
// for it, in the accumulator's type, and these sums cross to the owner's host: once each, where every part of
// every rank would cross without groups. The owner adds up groups in their order, those of its own host from
// the parts as they come, so the sum is that of one rank.
//
// A landing goes three ways: from the ranks of the host to the ranks that sum (`hosts` exchanges, one for the
// owners of each host), between the hosts (one exchange for each group that a host can have in a round), and
// to the accumulator. The step thread asks for the second when it looks and the first is over, in the order
// of landings, so that all ranks ask for the same. Ranks hand landings on at different times, as their shares
// and what they have written to nvme say. So each asks for all before it waits for parameters (ask()).
//
// Sums that are rounded (StepRounds::gradient_bits) cross as codes. They are rounded when they join the sum
// of the step, wherever they come from, so codes lose nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/landing/rank_parts.h>
#include <terrace/offload/landing/rank_sum.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class ExchangeByHosts final : public RankSum {
 public:
  // How groups are summed. The workers outlive this.
  struct Summing {
    Workers& workers;
    InstructionSet instruction_set;
    DataType sum_type;    // of accumulators
    uint64_t sum_bytes;   // of the sum of a group over the largest share: MemoryPlan::group_sum_bytes
    uint64_t code_bytes;  // of the codes that it crosses as: MemoryPlan::group_code_bytes
    uint64_t part_bytes;  // of the gradient of the largest share: MemoryPlan::share_bytes
  };
  // `incoming` of a slot has room for a part of every rank, for the sums of a round of all other hosts, and
  // for what crosses of these: MemoryPlan::incoming_slot_bytes.
  // `most_runs` is the largest number of runs in a landing.
  ExchangeByHosts(const ExchangeRanks& ranks, const Summing& summing, std::span<std::byte* const> incoming,
                  size_t most_runs);
  // Waits for what is under way.
  ~ExchangeByHosts() override;

  bool has_others() const override { return true; }
  void send(const StagedLanding& staged) override;
  void ask() override;
  bool has_arrived(const StagedLanding& staged) override;
  void add(const StagedLanding& staged, Add add) override;
  GradientLanding own_part(const GradientLanding& landing) override { return own_.of(landing); }
  RankBytes moved() const override { return moved_; }

 private:
  struct Parts {
    const StagedLanding* staged = nullptr;  // the last landing of the slot
    std::byte* incoming = nullptr;          // of the host's ranks, for the owners of each host
    std::byte* sums = nullptr;              // of the own host's groups, for the owners of each other host
    std::byte* crossing_out = nullptr;  // these as they cross; the sums themselves where there are no codes
    std::byte* crossing_in = nullptr;   // of each other host's groups
    bool is_summed = true;              // the exchange between hosts was asked for
    DeviceCopy inside, between;         // the two exchanges
    // By rank, once for each host, and once for each group between hosts; none in a dry run, where one part
    // stands for all.
    std::vector<std::vector<CommPart>> to, from;
  };

  void send_inside(size_t slot, uint32_t host);
  // Asks for the exchanges between hosts of all landings up to this one, or of the next one, which it waits
  // for on the host; or of those that are there, without waiting.
  void sum_up_to(size_t slot);
  void sum_next();
  void sum_what_is_there();
  void send_between(size_t slot);
  void sum_groups(size_t slot, uint32_t host);
  void sum_piece(size_t slot, uint32_t host, uint64_t begin, uint64_t end);
  // The sum of a group of another host, in the accumulator's type, for the own share.
  const std::byte* arrived_sum(size_t slot, uint32_t host, uint32_t group);
  void count_between(const StagedLanding& staged);

  // The tiles of the owner on that host that this rank sums for, or is.
  ShardTiles owners(ChunkId chunk, uint32_t host) const {
    return ranks_.shards.of(chunk, hosts_.rank(host, hosts_.place_on_host(ranks_.rank())));
  }
  // Where the gradient of a rank of this host lies for that owner, from the first of the owner's tiles on.
  const std::byte* part_of(size_t slot, uint32_t rank, uint32_t host) const;
  // Of each group of each other host, one behind the other, `bytes` each.
  std::byte* sum_at(std::byte* sums, uint64_t bytes, uint32_t host, uint32_t group) const;
  bool has_codes() const { return ranks_.rounds.gradient_bits > 0; }
  uint64_t crossing_sum_bytes() const { return has_codes() ? summing_.code_bytes : summing_.sum_bytes; }
  uint64_t crossing(uint64_t elements) const {
    return crossing_bytes(elements, summing_.sum_type, ranks_.rounds.gradient_bits);
  }

  const ExchangeRanks ranks_;
  const HostLayout hosts_;
  const Summing summing_;
  OwnParts own_;
  std::vector<Parts> parts_;  // by slot
  uint64_t sent_inside_ = 0;
  uint64_t sent_between_ = 0;
  RankBytes moved_;
  size_t next_to_sum_ = 0;  // the slot of the oldest landing whose groups are not summed
};

}  // namespace terrace
