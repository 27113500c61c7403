// A save of a run with several ranks: the first rank writes the checkpoint or the weights, byte for byte
// those of one rank, and the others bring it their part of the state when it asks for them. Whether it ended
// well all of them know.
#pragma once

#include <filesystem>

#include <terrace/base/error.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/offload/watch/watched_votes.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/state_source.h>

namespace terrace {

// The state of all ranks, for the first one, while read_by() runs. What the sink throws is thrown when the
// other ranks are through.
class RanksSource final : public StateSource {
 public:
  // All outlive this.
  RanksSource(Offloader& offloader, const FlatSpace& flat_space, const WatchedVotes& ranks)
      : offloader_(offloader), space_(flat_space), own_(offloader, flat_space), ranks_(ranks) {}

  const FlatSpace& space() const override { return space_; }
  RecordLayout layout() const override { return own_.layout(); }
  uint64_t states_bytes() const override { return own_.states_bytes(); }
  uint64_t frozen_bytes() const override { return own_.frozen_bytes(); }
  void read_states(Sink sink) override;
  void read_frozen(Sink sink) override;
  // As TrainingState::export_values().
  void read_values(TrainingState::Wanted wanted, TrainingState::ValueSink sink);
  // Calls `read`, which reads as much as it wants. The other ranks learn that nothing more is read, and
  // whether it ended well.
  auto read_by(const auto& read) {
    try {
      auto result = read();
      end(true);
      return result;
    } catch (const Error& failure) {
      if (failure.kind() != ErrorKind::peer) end(false);
      throw;
    }
  }

 private:
  void end(bool well) const;

  Offloader& offloader_;
  const FlatSpace& space_;
  OffloaderSource own_;
  const WatchedVotes& ranks_;
};

// On the first rank: save_checkpoint() (checkpoint.h) of the state of all.
std::filesystem::path save_of_ranks(const CheckpointFolder& folder, const CheckpointInfo& info,
                                    const FlatSpace& space, Offloader& offloader, const WatchedVotes& ranks,
                                    Log& log);
// On every other rank: takes part in what the first one does with a RanksSource, until it ends. Throws
// Error(peer) where it did not end well.
void follow_save(Offloader& offloader, const FlatSpace& space, const WatchedVotes& ranks);

}  // namespace terrace
