// WatchedVotes: RankVotes of the step thread whose waits its StepWatch sees, so that a rank that does not
// answer is named whatever the others ask it. Where there is one rank nothing is asked and nothing waits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class WatchedVotes {
  // Defined first: the members below deduce their types from it.
  auto watched(std::string_view what, const auto& ask) const {
    if (votes_.count() == 1) return ask();
    const WatchedWait waiting(watch_, word_of_ranks(what));
    return ask();
  }

 public:
  // What `votes` needs and the watch outlive this.
  WatchedVotes(const RankVotes& votes, StepWatch& watch) : votes_(votes), watch_(watch) {}

  uint32_t rank() const { return votes_.rank(); }
  uint32_t count() const { return votes_.count(); }

  // As those of RankVotes. `what` names the subject of the wait: "the losses".
  template <typename Word>
  std::vector<Word> of_all(std::string_view what, std::span<const Word> mine) const {
    return watched(what, [&] { return votes_.of_all(mine); });
  }
  template <typename Word>
  std::vector<Word> of_all(std::string_view what, const Word& mine) const {
    return of_all(what, std::span(&mine, 1));
  }
  template <typename Word>
  Word of_first(std::string_view what, const Word& mine) const {
    return watched(what, [&] { return votes_.of_first(mine); });
  }
  bool any(std::string_view what, bool mine) const {
    return watched(what, [&] { return votes_.any(mine); });
  }

 private:
  const RankVotes votes_;
  StepWatch& watch_;
};

}  // namespace terrace
