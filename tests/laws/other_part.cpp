#include "laws/other_part.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <terrace/offload/update/update_agreement.h>

namespace terrace::laws {

static std::vector<RankPlace> with_one_more(Communicator* ranks) {
  std::vector<RankPlace> places = {{}};
  if (ranks != nullptr) places.assign(ranks->places().begin(), ranks->places().end());
  RankPlace other = places.front();
  other.rank = static_cast<uint32_t>(places.size());
  places.push_back(other);
  return places;
}

OtherPart::OtherPart(Communicator* ranks)
    : Communicator(ranks != nullptr ? ranks->rank() : 0, with_one_more(ranks)), ranks_(ranks) {}

void OtherPart::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  if (!why_.empty()) throw std::logic_error("a part votes that has left: " + why_);
  const std::span<std::byte> own = all.first(all.size() - mine.size());
  if (ranks_ != nullptr)
    ranks_->ballot(lane, mine, own);
  else
    std::ranges::copy(mine, own.begin());
  UpdateBallot theirs;
  std::memcpy(&theirs, mine.data(), sizeof theirs);
  theirs.norm = {};
  theirs.norm.add_blocks(std::array{kSquaresElsewhere});
  theirs.part_differs = false;
  std::memcpy(all.last(mine.size()).data(), &theirs, sizeof theirs);
}

void OtherPart::all_gather(Lane, std::span<std::byte>, uint64_t, const Event*, Event&, const CommNote&) {
  throw std::logic_error("a part gathers what another one has");
}

void OtherPart::exchange_within(const RankGroup&, Lane, std::span<const CommPart>, std::span<CommPart>,
                                const Event*, Event&, const CommNote&) {
  throw std::logic_error("a part exchanges with another one");
}

}  // namespace terrace::laws
