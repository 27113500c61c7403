// Schedule: the sequence of uses of one training step, and when a chunk is used next. It decides nothing, and
// a step that does not follow it is never an error.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/memory/space/tensor.h>

namespace terrace {

// One lease: the operation that asked, and the chunks that it needs on the device together.
struct ScheduledUse {
  // The key: the same operation has the same key in every step, "mb0/h.3.mlp/backward".
  std::string operation;
  UseKind kind = UseKind::forward;
  std::vector<ChunkId> chunks;  // sorted, unique; may be empty
  // The places for chunks that something else (gradients) takes while the operation computes.
  uint32_t occupied_slots = 0;

  bool operator==(const ScheduledUse&) const = default;
};

inline constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// A schedule is immutable. Positions count uses from the start of the step; as the position of "now", kNever
// stands for the moment before the first use.
class Schedule {
 public:
  Schedule() = default;
  // Asserts that every use names chunks below `chunk_count`, sorted and unique. `renewed` says which chunks
  // change at the end of every step, so that no copy of them is of use in the next one; empty: none.
  Schedule(std::vector<ScheduledUse> uses, uint32_t chunk_count, std::vector<bool> renewed = {});

  bool empty() const { return uses_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(uses_.size()); }
  const ScheduledUse& use(uint32_t position) const { return uses_[position]; }
  std::span<const ScheduledUse> uses() const { return uses_; }

  // How many uses after `position` the chunk is used next: 1 for the use right after it; a use at `position`
  // itself does not count. The distance wraps into the next step: after its last use in this step a chunk is
  // next used at its first use in the next one. It is kNever when no use names the chunk, or none before it
  // is renewed, and for every chunk of an empty schedule. O(log uses of the chunk).
  uint32_t distance_to_next_use(ChunkId chunk, uint32_t position) const;
  // Like distance_to_next_use(), but wraps for renewed chunks too, as if a copy of them served the next step.
  uint32_t distance_across_steps(ChunkId chunk, uint32_t position) const;
  // Like distance_to_next_use(), but never wraps: kNever when the chunk is not used again in this step.
  uint32_t distance_within_step(ChunkId chunk, uint32_t position) const;

  // The first position >= `from` with this operation key, or kNever. O(log uses).
  uint32_t find(std::string_view operation, uint32_t from) const;

 private:
  // The positions of a chunk's uses, ascending.
  std::span<const uint32_t> positions_of(ChunkId chunk) const;

  std::vector<ScheduledUse> uses_;
  std::vector<uint32_t> positions_;       // concatenated; see position_begin_
  std::vector<uint32_t> position_begin_;  // chunk_count + 1 entries
  std::vector<uint32_t> by_operation_;    // positions, sorted by operation key, then by position
  std::vector<bool> renewed_;             // per chunk, or empty
};

// ScheduleCursor: follows a step as it happens, compares it with the schedule of the step before and records
// the new one. Skipped, repeated and unknown operations never fail: they only make the next schedule differ.
// A step that matches its schedule allocates nothing. One thread at a time uses it.
class ScheduleCursor {
 public:
  // `renewed` is that of Schedule.
  explicit ScheduleCursor(uint32_t chunk_count, std::vector<bool> renewed = {})
      : chunk_count_(chunk_count), renewed_(std::move(renewed)) {}

  // Uses a schedule known beforehand (from a dry run) from the next begin_step() on. It must not be called
  // within a step.
  void set_schedule(Schedule schedule);
  const Schedule& schedule() const { return schedule_; }

  // Begins a step. A step before it that was never ended leaves no trace.
  void begin_step();
  // Follows the use that happens now. Returns its position in the schedule, or kNever when the schedule does
  // not have it (the position of the last known use stays in force). A scheduled use is recognised by
  // operation and kind: an evaluation that runs a training operation's key is not that use. Outside a step
  // nothing is followed, and the result is kNever.
  //
  // The use expected next is tried first, then the uses after it (some were skipped), then those already
  // passed: a step that repeats a part of itself will most likely go on as it did there. A wrong guess costs
  // little, because the next use is looked for forwards again.
  uint32_t advance(std::string_view operation, UseKind kind, std::span<const ChunkId> chunks,
                   uint32_t occupied_slots = 0);
  // The position of the last use of this step that was found in the schedule; kNever before the first and
  // between steps.
  uint32_t position() const { return position_; }
  // Ends the step. When it differs from the schedule, its uses become the schedule. Returns whether the
  // schedule changed.
  bool end_step();

 private:
  uint32_t locate(std::string_view operation, UseKind kind) const;
  void record(std::string_view operation, UseKind kind, std::span<const ChunkId> chunks,
              uint32_t occupied_slots);
  void start_recording();

  uint32_t chunk_count_;
  std::vector<bool> renewed_;
  Schedule schedule_;
  bool in_step_ = false;
  uint32_t position_ = kNever;
  // While the step equals the schedule's first `matched_count_` uses, nothing is recorded; from the first
  // difference on, `recorded_` holds every use of the step.
  bool deviates_ = false;
  uint32_t matched_count_ = 0;
  std::vector<ScheduledUse> recorded_;
};

}  // namespace terrace
