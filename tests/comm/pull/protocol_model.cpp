#include "comm/pull/protocol_model.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_set>

namespace terrace::pull_model {
namespace {

constexpr uint8_t kNone = 0xff;

struct RankState {
  uint8_t action = 0;                          // the next of its program
  uint8_t phase = 0;                           // of that action
  uint8_t prefetched = kNone;                  // the chunk that is on its way ahead
  uint8_t prefetch_reads = 0;                  // its bytes are read now
  uint8_t prefetch_version = 0;                // the version that it is read at
  std::array<uint8_t, kMostRanks> heard = {};  // of each rank's messages to this one, so many
  bool operator==(const RankState&) const = default;
};
struct ChunkState {
  uint8_t version = 0;
  uint8_t resolved = 0;  // micro-batches of the step that are added or absent
  uint8_t added = 0;     // a bit for each of them
  bool operator==(const ChunkState&) const = default;
};
struct State {
  std::array<RankState, kMostRanks> ranks;
  std::array<ChunkState, kChunks> chunks;
  bool operator==(const State&) const = default;
};
static_assert(sizeof(State) == kMostRanks * 8 + kChunks * 3, "no padding, so that bytes are the state");

struct HashOfState {
  size_t operator()(const State& state) const {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&state);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t b = 0; b < sizeof state; ++b) hash = (hash ^ bytes[b]) * 0x100000001b3;
    return hash ^ hash >> 29;
  }
};

// What a rank tells another one, in the order of its program.
struct Message {
  bool is_end = false;
  uint32_t step = 0;
  uint32_t chunk = 0;
  uint32_t micro_batch = 0;
  uint32_t sent_after = 0;  // actions of the sender
};

enum UpdatePhase : uint8_t { kAdding, kWaiting, kWriting };

class Explorer {
 public:
  Explorer(const Scenario& scenario, Break broken) : s_(scenario), broken_(broken) {
    for (uint32_t r = 0; r < s_.ranks; ++r) note_messages(r);
  }

  Exploration run() {
    std::vector<State> stack = {State{}};
    seen_.insert(stack.back());
    while (!stack.empty() && wrong_.empty()) {
      const State state = stack.back();
      stack.pop_back();
      next_.clear();
      for (uint32_t r = 0; r < s_.ranks; ++r) {
        advance_program(state, r);
        advance_prefetch(state, r);
        hear(state, r);
      }
      for (uint32_t c = 0; c < kChunks; ++c) add(state, c);
      if (next_.empty() && !is_over(state)) wrong_ = "nothing moves any more";
      for (const State& next : next_) {
        if (seen_.insert(next).second) stack.push_back(next);
      }
    }
    return {seen_.size(), wrong_};
  }

 private:
  uint32_t owner(uint32_t chunk) const { return chunk % s_.ranks; }
  bool owns(uint32_t rank, uint32_t chunk) const { return owner(chunk) == rank; }
  bool is_broken(Break what) const { return broken_ == what; }
  void find_wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  // The messages of a rank to each owner, and how many updates come before each of its actions.
  void note_messages(uint32_t rank) {
    const std::vector<Action>& program = s_.programs[rank];
    uint32_t step = 0;
    for (uint32_t a = 0; a < program.size(); ++a) {
      step_of_[rank].push_back(step);
      const Action& action = program[a];
      const auto tell = [&](uint32_t to, bool is_end) {
        sent_[rank][to].push_back({is_end, step, action.chunk, action.micro_batch, a + 1});
      };
      if (action.kind == ActionKind::give) tell(owner(action.chunk), false);
      for (uint32_t o = 0; o < s_.ranks && action.kind == ActionKind::end; ++o) tell(o, true);
      step += action.kind == ActionKind::update ? 1 : 0;
    }
    step_of_[rank].push_back(step);
    for (uint32_t o = 0; o < s_.ranks; ++o) misplace_ends(sent_[rank][o]);
  }

  // Ends that come before gradients of their micro-batch.
  void misplace_ends(std::vector<Message>& messages) const {
    if (!is_broken(Break::declares_absent_early) && !is_broken(Break::loses_order_of_messages)) return;
    for (size_t m = 1; m < messages.size(); ++m) {
      for (size_t i = m; i > 0 && messages[i].is_end && !messages[i - 1].is_end; --i) {
        if (is_broken(Break::declares_absent_early)) messages[i].sent_after = messages[i - 1].sent_after - 1;
        std::swap(messages[i], messages[i - 1]);
      }
    }
  }

  uint32_t step_of(const State& state, uint32_t rank) const {
    return step_of_[rank][state.ranks[rank].action];
  }
  bool is_over(const State& state) const {
    for (uint32_t r = 0; r < s_.ranks; ++r) {
      if (state.ranks[r].action < s_.programs[r].size()) return false;
    }
    return true;
  }

  // --- What owners know ---

  // The own words are heard at once.
  size_t heard(const State& state, uint32_t by, uint32_t from) const {
    if (by != from) return state.ranks[by].heard[from];
    const std::vector<Message>& messages = sent_[from][by];
    return static_cast<size_t>(std::ranges::count_if(
        messages, [&](const Message& m) { return m.sent_after <= state.ranks[from].action; }));
  }
  bool knows(const State& state, uint32_t chunk, uint32_t micro_batch, bool is_end, uint32_t step) const {
    const uint32_t from = micro_batch % s_.ranks, by = owner(chunk);
    const std::vector<Message>& messages = sent_[from][by];
    const size_t count = heard(state, by, from);
    return std::any_of(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count),
                       [&](const Message& m) {
                         if (m.is_end != is_end || m.step != step) return false;
                         if (is_end)
                           return m.micro_batch == micro_batch || is_broken(Break::declares_all_absent);
                         return m.chunk == chunk && m.micro_batch == micro_batch;
                       });
  }
  // Micro-batches that are absent need no moment of their own.
  void resolve(State& state) const {
    for (uint32_t c = 0; c < kChunks; ++c) {
      ChunkState& chunk = state.chunks[c];
      const uint32_t step = chunk.version;
      while (chunk.resolved < s_.micro_batches && !knows(state, c, chunk.resolved, false, step) &&
             knows(state, c, chunk.resolved, true, step))
        ++chunk.resolved;
    }
  }
  void take(State state) {
    resolve(state);
    next_.push_back(state);
  }

  void hear(const State& state, uint32_t by) {
    for (uint32_t from = 0; from < s_.ranks; ++from) {
      if (from == by) continue;
      const std::vector<Message>& messages = sent_[from][by];
      const uint8_t count = state.ranks[by].heard[from];
      if (count == messages.size() || messages[count].sent_after > state.ranks[from].action) continue;
      State next = state;
      ++next.ranks[by].heard[from];
      take(next);
    }
  }

  // --- Gradients ---

  bool may_add(const State& state, uint32_t rank) const {
    const RankState& owner = state.ranks[rank];
    const bool is_updating =
        owner.action < s_.programs[rank].size() && s_.programs[rank][owner.action].kind == ActionKind::update;
    if (is_updating && owner.phase > kAdding)
      return is_broken(Break::updates_before_all_added) || is_broken(Break::adds_before_own_update);
    if (!is_broken(Break::adds_on_step_thread) || is_updating) return true;
    return can_advance(state, rank);
  }
  void add(const State& state, uint32_t c) {
    if (!may_add(state, owner(c))) return;
    const ChunkState& chunk = state.chunks[c];
    for (uint32_t j = 0; j < s_.micro_batches; ++j) {
      if (is_broken(Break::adds_before_own_update) && knows(state, c, j, false, chunk.version + 1u))
        find_wrong("a gradient of the next step is added while this one's are read");
      const bool is_due = j == chunk.resolved || is_broken(Break::adds_as_they_come);
      if (!is_due || (chunk.added >> j & 1) != 0) continue;
      if (!knows(state, c, j, false, chunk.version)) continue;
      if (chunk.added >> j != 0) find_wrong("a gradient is added behind that of a later micro-batch");
      if (is_broken(Break::frees_slot_when_told) && given_after(state, c, j) >= s_.staging)
        find_wrong("a gradient is taken out of a slot that holds another one");
      State next = state;
      next.chunks[c].added = static_cast<uint8_t>(chunk.added | 1u << j);
      if (j == chunk.resolved) ++next.chunks[c].resolved;
      take(next);
    }
  }
  // Gradients that the rank has handed over behind this one.
  uint32_t given_after(const State& state, uint32_t chunk, uint32_t micro_batch) const {
    const uint32_t rank = micro_batch % s_.ranks, step = state.chunks[chunk].version;
    const std::vector<Action>& program = s_.programs[rank];
    uint32_t count = 0;
    bool is_behind = false;
    for (uint32_t a = 0; a < state.ranks[rank].action; ++a) {
      if (program[a].kind != ActionKind::give) continue;
      count += is_behind ? 1 : 0;
      is_behind |=
          program[a].chunk == chunk && program[a].micro_batch == micro_batch && step_of_[rank][a] == step;
    }
    return count;
  }
  // Slots of the rank's staging that are taken.
  uint32_t waiting(const State& state, uint32_t rank) const {
    uint32_t count = 0;
    const uint32_t step = step_of(state, rank);
    for (uint32_t a = 0; a < state.ranks[rank].action; ++a) {
      const Action& action = s_.programs[rank][a];
      if (action.kind != ActionKind::give || step_of_[rank][a] != step) continue;
      count += (state.chunks[action.chunk].added >> action.micro_batch & 1) == 0 ? 1 : 0;
    }
    return count;
  }
  // What was handed over of the chunk in the step.
  uint8_t given(uint32_t chunk, uint32_t step) const {
    uint8_t all = 0;
    for (uint32_t r = 0; r < s_.ranks; ++r) {
      for (uint32_t a = 0; a < s_.programs[r].size(); ++a) {
        const Action& action = s_.programs[r][a];
        if (action.kind == ActionKind::give && action.chunk == chunk && step_of_[r][a] == step)
          all = static_cast<uint8_t>(all | 1u << action.micro_batch);
      }
    }
    return all;
  }

  // --- Parameters ---

  bool is_writing(const State& state, uint32_t rank) const {
    const RankState& at = state.ranks[rank];
    return at.action < s_.programs[rank].size() && at.phase == kWriting &&
           s_.programs[rank][at.action].kind == ActionKind::update;
  }
  bool may_read(const State& state, uint32_t chunk, uint32_t version) const {
    if (is_broken(Break::reads_any_version)) return !is_writing(state, owner(chunk));
    return state.chunks[chunk].version == version && !is_writing(state, owner(chunk));
  }
  void check_read(const State& state, uint32_t chunk, uint32_t version) {
    if (state.chunks[chunk].version < version) find_wrong("a stale version is read");
    if (state.chunks[chunk].version > version) find_wrong("a version is read that comes too late");
  }
  void advance_prefetch(const State& state, uint32_t r) {
    const RankState& rank = state.ranks[r];
    if (rank.prefetched == kNone) return;
    State next = state;
    if (rank.prefetch_reads == 0) {
      if (!may_read(state, rank.prefetched, rank.prefetch_version)) return;
      check_read(state, rank.prefetched, rank.prefetch_version);
      next.ranks[r].prefetch_reads = 1;
    } else {
      next.ranks[r].prefetched = kNone;
      next.ranks[r].prefetch_reads = next.ranks[r].prefetch_version = 0;
    }
    take(next);
  }
  void check_write(const State& state, uint32_t writer) {
    for (uint32_t r = 0; r < s_.ranks; ++r) {
      const RankState& rank = state.ranks[r];
      const bool waits = rank.prefetched != kNone && owns(writer, rank.prefetched) &&
                         rank.prefetch_version <= state.chunks[rank.prefetched].version;
      if (waits && r != writer) find_wrong("a share is overwritten before its last reader");
      if (rank.action == s_.programs[r].size()) continue;
      const Action& action = s_.programs[r][rank.action];
      const bool reads = action.kind == ActionKind::read && rank.phase > 0;
      if (reads && owns(writer, action.chunk)) find_wrong("a share is overwritten while it is read");
    }
  }

  // --- Programs ---

  bool all_have_come(const State& state, uint32_t r, ActionKind kind) const {
    uint32_t before = 0;
    const auto count = [&](uint32_t rank, uint32_t end) {
      const std::vector<Action>& program = s_.programs[rank];
      return static_cast<uint32_t>(std::count_if(program.begin(), program.begin() + end,
                                                 [&](const Action& a) { return a.kind == kind; }));
    };
    before = count(r, state.ranks[r].action);
    for (uint32_t other = 0; other < s_.ranks; ++other) {
      const RankState& at = state.ranks[other];
      const uint32_t come = count(other, at.action);
      const bool is_there =
          at.action < s_.programs[other].size() && s_.programs[other][at.action].kind == kind && at.phase > 0;
      if (come + (is_there ? 1 : 0) <= before) return false;
    }
    return true;
  }
  bool can_advance(const State& state, uint32_t r) const {
    const RankState& rank = state.ranks[r];
    if (rank.action == s_.programs[r].size()) return false;
    const Action& action = s_.programs[r][rank.action];
    const uint32_t step = step_of_[r][rank.action];
    switch (action.kind) {
      case ActionKind::read:
        return rank.phase > 0 || may_read(state, action.chunk, step);
      case ActionKind::prefetch:
        return rank.prefetched == kNone;
      case ActionKind::give:
        return is_broken(Break::frees_slot_when_told) || waiting(state, r) < s_.staging;
      case ActionKind::end:
        return true;
      case ActionKind::barrier:
        return rank.phase == 0 || all_have_come(state, r, action.kind);
      case ActionKind::update:
        return can_update(state, r);
    }
    return false;
  }
  bool can_update(const State& state, uint32_t r) const {
    const RankState& rank = state.ranks[r];
    if (rank.phase == kWriting) return true;
    if (rank.phase == kWaiting)
      return is_broken(Break::overwrites_when_done) || all_have_come(state, r, ActionKind::update);
    if (rank.prefetched != kNone && !is_broken(Break::leaves_reads_open)) return false;
    if (is_broken(Break::updates_before_all_added)) return true;
    for (uint32_t c = 0; c < kChunks; ++c) {
      if (owns(r, c) && state.chunks[c].resolved < s_.micro_batches && !has_added_all(state, c)) return false;
    }
    return waiting(state, r) == 0;
  }
  // Where the order is broken, all that was handed over is enough.
  bool has_added_all(const State& state, uint32_t c) const {
    return is_broken(Break::adds_as_they_come) && state.chunks[c].added == given(c, state.chunks[c].version);
  }

  void advance_program(const State& state, uint32_t r) {
    if (!can_advance(state, r)) return;
    State next = state;
    RankState& rank = next.ranks[r];
    const Action& action = s_.programs[r][rank.action];
    const uint32_t step = step_of_[r][rank.action];
    const auto go_on = [&] { ++rank.action, rank.phase = 0; };
    switch (action.kind) {
      case ActionKind::read:
        if (rank.phase == 0) check_read(state, action.chunk, step);
        if (++rank.phase == 2 || owns(r, action.chunk)) go_on();
        break;
      case ActionKind::prefetch:
        rank.prefetched = static_cast<uint8_t>(action.chunk);
        rank.prefetch_version = static_cast<uint8_t>(step);
        go_on();
        break;
      case ActionKind::give:
      case ActionKind::end:
        go_on();
        break;
      case ActionKind::barrier:
        if (++rank.phase == 2) go_on();
        break;
      case ActionKind::update:
        return advance_update(state, next, r);
    }
    take(next);
  }
  void advance_update(const State& state, State& next, uint32_t r) {
    RankState& rank = next.ranks[r];
    if (rank.phase == kWaiting) {
      check_write(state, r);
      for (uint32_t c = 0; c < kChunks; ++c) {
        if (owns(r, c) && state.chunks[c].added != given(c, state.chunks[c].version))
          find_wrong("an update is without a gradient that was handed over");
      }
    }
    if (rank.phase++ < kWriting) return take(next);
    for (uint32_t c = 0; c < kChunks; ++c) {
      if (owns(r, c)) next.chunks[c] = {static_cast<uint8_t>(state.chunks[c].version + 1), 0, 0};
    }
    ++rank.action, rank.phase = 0;
    take(next);
  }

  const Scenario& s_;
  const Break broken_;
  std::array<std::vector<uint32_t>, kMostRanks> step_of_;  // by rank and action
  std::array<std::array<std::vector<Message>, kMostRanks>, kMostRanks> sent_;
  std::unordered_set<State, HashOfState> seen_;
  std::vector<State> next_;
  std::string wrong_;
};

}  // namespace

Exploration explore(const Scenario& scenario, Break broken) {
  return Explorer(scenario, broken).run();
}

std::vector<std::vector<uint32_t>> orders() {
  return {{}, {0}, {1}, {0, 1}, {1, 0}};
}

}  // namespace terrace::pull_model
