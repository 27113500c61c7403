// RankVotes: what the ranks of a run tell each other beside the bytes of the offloader: losses, the wish to
// stop, choices that only one of them may make. Every rank makes the same calls in the same order. Where
// there is one rank nothing is asked. The step thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

class RankVotes {
 public:
  // Null: there is one rank. The communicator outlives this. Calls of one lane come from one thread.
  explicit RankVotes(Communicator* communicator, Lane lane = Lane::control)
      : communicator_(communicator), lane_(lane) {}

  uint32_t rank() const { return communicator_ != nullptr ? communicator_->rank() : 0; }
  uint32_t count() const { return communicator_ != nullptr ? communicator_->size() : 1; }

  // Every rank's words in the order of ranks, as many from each.
  template <typename Word>
  std::vector<Word> of_all(std::span<const Word> mine) const {
    static_assert(std::is_trivially_copyable_v<Word>);
    std::vector<Word> all(mine.size() * count());
    if (communicator_ == nullptr) {
      all.assign(mine.begin(), mine.end());
    } else {
      communicator_->ballot(lane_, std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    }
    return all;
  }
  template <typename Word>
  std::vector<Word> of_all(const Word& mine) const {
    return of_all(std::span(&mine, 1));
  }
  // The first rank's word.
  template <typename Word>
  Word of_first(const Word& mine) const {
    return of_all(mine).front();
  }
  bool of_first(bool mine) const { return of_first(static_cast<uint8_t>(mine)) != 0; }
  bool any(bool mine) const {
    for (const uint8_t one : of_all(static_cast<uint8_t>(mine))) mine = mine || one != 0;
    return mine;
  }
  uint64_t least(uint64_t mine) const {
    for (const uint64_t one : of_all(mine)) mine = one < mine ? one : mine;
    return mine;
  }

 private:
  Communicator* const communicator_;
  const Lane lane_;
};

}  // namespace terrace
