// The lifecycle of a tensor, and of a chunk between tiers, as tables. Residency, eviction, reduction and
// update all go through TensorStates::change, which knows no transition but those of kTransitions. Nothing
// here moves bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

enum class TensorState : uint8_t {
  free,                 // has no values yet
  hold,                 // valid, nobody computes with it
  compute,              // leased by an operation
  hold_after_forward,   // valid, its backward use is still to come
  hold_after_backward,  // valid, more backward uses of this micro-batch are to come
  grad_ready,           // its gradient of this micro-batch is complete
  reducing,             // its gradient moves to the place where the update reads it
  updating,             // the optimizer works on it
};
inline constexpr size_t kTensorStateCount = 8;

struct Transition {
  TensorState from;
  TensorState to;
  std::string_view when;
};

// The only legal transitions, in the order in which a training step meets them.
inline constexpr std::array kTransitions = {
    Transition{TensorState::free, TensorState::hold, "initialised or loaded"},
    Transition{TensorState::hold, TensorState::compute, "leased by an operation"},
    Transition{TensorState::compute, TensorState::hold, "released after an inference use"},
    Transition{TensorState::compute, TensorState::hold_after_forward, "released after a forward use"},
    Transition{TensorState::hold_after_forward, TensorState::compute, "leased again"},
    Transition{TensorState::compute, TensorState::hold_after_backward, "released after a backward use"},
    Transition{TensorState::hold_after_backward, TensorState::compute, "leased for a further backward use"},
    Transition{TensorState::hold_after_backward, TensorState::grad_ready, "its last backward use is over"},
    Transition{TensorState::hold_after_forward, TensorState::grad_ready,
               "the micro-batch ended without a backward use"},
    Transition{TensorState::grad_ready, TensorState::reducing,
               "its gradient leaves for where the update reads it"},
    Transition{TensorState::grad_ready, TensorState::compute,
               "leased to read, though its gradient is complete"},
    Transition{TensorState::reducing, TensorState::compute, "leased to read, though its gradient has left"},
    Transition{TensorState::reducing, TensorState::hold, "landed; more micro-batches follow"},
    Transition{TensorState::reducing, TensorState::updating, "landed; the optimizer takes it"},
    Transition{TensorState::hold, TensorState::updating,
               "updated though the last micro-batch did not use it"},
    Transition{TensorState::updating, TensorState::hold, "updated"},
    Transition{TensorState::hold_after_forward, TensorState::hold,
               "a frozen tensor after its micro-batch, or an abandoned step"},
    Transition{TensorState::hold_after_backward, TensorState::hold,
               "a frozen tensor after its micro-batch, or an abandoned step"},
    Transition{TensorState::grad_ready, TensorState::hold, "an abandoned step"},
};

std::string_view name_of(TensorState state);
bool is_legal(TensorState from, TensorState to);
// A chunk may leave the device only while all its tensors are in one of these states.
constexpr bool is_hold(TensorState state) {
  return state == TensorState::free || state == TensorState::hold ||
         state == TensorState::hold_after_forward || state == TensorState::hold_after_backward ||
         state == TensorState::grad_ready || state == TensorState::reducing;
}

// The state of a chunk on its way between tiers.
enum class ChunkState : uint8_t {
  absent,    // this tier has no valid copy
  fetching,  // its bytes are on their way into this tier
  resident,  // its bytes are valid here
  failed,    // a transfer failed; the bytes here are not valid
};
inline constexpr size_t kChunkStateCount = 4;

struct ChunkTransition {
  ChunkState from;
  ChunkState to;
  std::string_view when;
};

inline constexpr std::array kChunkTransitions = {
    ChunkTransition{ChunkState::absent, ChunkState::fetching, "a slot is reserved and the transfer begins"},
    ChunkTransition{ChunkState::absent, ChunkState::resident, "made in place: a gradient slot set to zero"},
    ChunkTransition{ChunkState::fetching, ChunkState::resident, "every byte has arrived"},
    ChunkTransition{ChunkState::fetching, ChunkState::failed, "the transfer in failed"},
    ChunkTransition{ChunkState::resident, ChunkState::absent, "a clean copy is dropped"},
    ChunkTransition{ChunkState::failed, ChunkState::absent, "the failure is reported and the slot given up"},
};
std::string_view name_of(ChunkState state);
bool is_legal(ChunkState from, ChunkState to);

// The state of every tensor, with its last transitions. One thread at a time uses it.
class TensorStates {
 public:
  // All tensors start free. `space` must outlive this object.
  explicit TensorStates(const FlatSpace& space);

  TensorState state(TensorId id) const { return entries_[index_of(id)].state; }
  // Changes the tensor's state; no other function does. Throws std::logic_error naming the tensor, both
  // states and its last eight transitions when the table has no such row.
  void change(TensorId id, TensorState to);
  bool all_hold(std::span<const TensorId> ids) const;
  // "hold -> compute -> hold_after_forward", the oldest first: at most eight transitions, the last into
  // state(id).
  std::string history(TensorId id) const;
  // How often change() took a tensor from one state to another.
  uint64_t count(TensorState from, TensorState to) const {
    return counts_[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }

 private:
  static constexpr size_t kHistory = 8;  // transitions, hence one state more
  struct Entry {
    TensorState state = TensorState::free;
    uint8_t newest = 0;                               // where in the ring `state` is
    uint8_t transition_count = 0;                     // valid transitions before it, at most kHistory
    std::array<TensorState, kHistory + 1> history{};  // a ring of the states passed through
  };
  const FlatSpace& space_;
  std::vector<Entry> entries_;
  std::array<std::array<uint64_t, kTensorStateCount>, kTensorStateCount> counts_{};
};

}  // namespace terrace
