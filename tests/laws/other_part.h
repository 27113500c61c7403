// OtherPart: the part of a model that a training of the laws does not have. It is always ready for the same
// update, and its gradients have the same squares in every step.
#pragma once

#include <span>
#include <string>

#include <terrace/comm/operations/communicator.h>

namespace terrace::laws {

// What the other part's gradients add to the sum of squares, as they are, with their loss scale.
inline constexpr double kSquaresElsewhere = 0.0390625;

// The ranks of all parts, as each rank of the part that there is sees them: first those of its own part, and
// then the one that has the rest.
class OtherPart final : public Communicator {
 public:
  // `ranks`: those of the own part; null: it has one.
  explicit OtherPart(Communicator* ranks);

  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave(std::string why) override { why_ = std::move(why); }
  CommCounters counters() const override { return {}; }

  // Parts exchange nothing but ballots.
  void all_gather(Lane, std::span<std::byte>, uint64_t, const Event*, Event&, const CommNote&) override;
  void exchange_within(const RankGroup&, Lane, std::span<const CommPart>, std::span<CommPart>, const Event*,
                       Event&, const CommNote&) override;

 private:
  Communicator* const ranks_;
  std::string why_;
};

}  // namespace terrace::laws
