// ExchangeWithAll: the exchange of gradients in which every part goes from the rank that made it to its
// owner, and the owner adds the parts of all ranks as they are (rank_parts.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/offload/landing/rank_parts.h>
#include <terrace/offload/landing/rank_sum.h>

namespace terrace {

class ExchangeWithAll final : public RankSum {
 public:
  // `incoming` of a slot has room for the largest own shard once for every rank. `most_runs` is the largest
  // number of runs in a landing.
  ExchangeWithAll(const ExchangeRanks& ranks, std::span<std::byte* const> incoming, size_t most_runs);
  // Waits for what is under way.
  ~ExchangeWithAll() override;

  bool has_others() const override { return true; }
  void send(const StagedLanding& staged) override;
  bool has_arrived(const StagedLanding& staged) override { return parts_[staged.slot].arrived.done(); }
  void add(const StagedLanding& staged, Add add) override;
  GradientLanding own_part(const GradientLanding& landing) override { return own_.of(landing); }
  RankBytes moved() const override { return moved_; }

 private:
  struct Parts {
    std::byte* incoming = nullptr;   // one own shard for every rank
    DeviceCopy arrived;              // from all ranks
    std::vector<CommPart> to, from;  // by rank; none in a dry run, where one part stands for all
  };
  void fill_parts(const StagedLanding& staged);

  const ExchangeRanks ranks_;
  OwnParts own_;
  std::vector<Parts> parts_;  // by slot
  uint64_t sent_ = 0;
  RankBytes moved_;
};

}  // namespace terrace
