// A save of a run with several ranks: the first rank writes the checkpoint, byte for byte that of one rank,
// and the others bring it their part of the state when it asks for them. Whether it ended well all of them
// know.
#pragma once

#include <filesystem>

#include <terrace/comm/rank_votes.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/state_source.h>

namespace terrace {

// The state of all ranks, for the first one. What the sink throws is thrown when the other ranks are through.
class RanksSource final : public StateSource {
 public:
  // Both outlive this.
  RanksSource(Offloader& offloader, const RankVotes& ranks) : own_(offloader), ranks_(ranks) {}

  RecordLayout layout() const override { return own_.layout(); }
  uint64_t states_bytes() const override { return own_.states_bytes(); }
  uint64_t frozen_bytes() const override { return own_.frozen_bytes(); }
  void read_states(Sink sink) override;
  void read_frozen(Sink sink) override;
  // Tells the other ranks that nothing more is read, and how it ended.
  void end(bool well) const;

 private:
  OffloaderSource own_;
  const RankVotes& ranks_;
};

// On the first rank: save_checkpoint() (checkpoint.h) of the state of all.
std::filesystem::path save_of_ranks(const CheckpointFolder& folder, const CheckpointInfo& info,
                                    const FlatSpace& space, Offloader& offloader, const RankVotes& ranks,
                                    Log& log);
// On every other rank: takes part in that until it ends. Throws Error(peer) where it did not end well.
void follow_save(Offloader& offloader, const RankVotes& ranks);

}  // namespace terrace
