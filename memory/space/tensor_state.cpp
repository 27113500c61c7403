#include <terrace/memory/space/tensor_state.h>

#include <algorithm>
#include <stdexcept>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr std::array<std::string_view, kTensorStateCount> kTensorStateNames = {
    "free",       "hold",     "compute", "hold_after_forward", "hold_after_backward",
    "grad_ready", "reducing", "updating"};
constexpr std::array<std::string_view, kChunkStateCount> kChunkStateNames = {"absent", "fetching", "resident",
                                                                             "failed"};
static_assert(static_cast<size_t>(TensorState::updating) + 1 == kTensorStateCount);
static_assert(static_cast<size_t>(ChunkState::failed) + 1 == kChunkStateCount);

// Each row is a state, each bit a successor. A state changes several times per tensor and use, so the tables
// are looked up and not walked.
template <size_t state_count, typename Table>
constexpr std::array<uint8_t, state_count> successor_bits(const Table& table) {
  static_assert(state_count <= 8);
  std::array<uint8_t, state_count> bits{};
  for (const auto& row : table) {
    bits[static_cast<size_t>(row.from)] |= static_cast<uint8_t>(1u << static_cast<unsigned>(row.to));
  }
  return bits;
}
constexpr auto kTensorSuccessors = successor_bits<kTensorStateCount>(kTransitions);
constexpr auto kChunkSuccessors = successor_bits<kChunkStateCount>(kChunkTransitions);

}  // namespace

std::string_view name_of(TensorState state) {
  return kTensorStateNames[static_cast<size_t>(state)];
}

std::string_view name_of(ChunkState state) {
  return kChunkStateNames[static_cast<size_t>(state)];
}

bool is_legal(TensorState from, TensorState to) {
  return (kTensorSuccessors[static_cast<size_t>(from)] >> static_cast<unsigned>(to) & 1u) != 0;
}

bool is_legal(ChunkState from, ChunkState to) {
  return (kChunkSuccessors[static_cast<size_t>(from)] >> static_cast<unsigned>(to) & 1u) != 0;
}

TensorStates::TensorStates(const FlatSpace& space) : space_(space), entries_(space.tensor_count()) {}

void TensorStates::change(TensorId id, TensorState to) {
  TERRACE_ASSERT(index_of(id) < entries_.size(), "no tensor " + std::to_string(index_of(id)));
  Entry& entry = entries_[index_of(id)];
  if (!is_legal(entry.state, to)) {
    throw std::logic_error("tensor \"" + space_.tensor(id).name + "\" cannot go from " +
                           std::string(name_of(entry.state)) + " to " + std::string(name_of(to)) +
                           "; its last states: " + history(id));
  }
  ++counts_[static_cast<size_t>(entry.state)][static_cast<size_t>(to)];
  entry.state = to;
  entry.newest = static_cast<uint8_t>((entry.newest + 1) % entry.history.size());
  entry.history[entry.newest] = to;
  if (entry.transition_count < kHistory) ++entry.transition_count;
}

bool TensorStates::all_hold(std::span<const TensorId> ids) const {
  return std::all_of(ids.begin(), ids.end(), [this](TensorId id) { return is_hold(state(id)); });
}

std::string TensorStates::history(TensorId id) const {
  const Entry& entry = entries_[index_of(id)];
  std::string text;
  for (size_t back = entry.transition_count + size_t{1}; back-- > 0;) {
    if (!text.empty()) text += " -> ";
    text += name_of(entry.history[(entry.newest + entry.history.size() - back) % entry.history.size()]);
  }
  return text;
}

}  // namespace terrace
