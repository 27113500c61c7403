// Schedule: the sequence of uses of one training step, and who uses a chunk next.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/tensor.h>

namespace terrace {

// One lease: the operation that asked, and the chunks that it needs on the device together.
struct ScheduledUse {
  std::string operation;  // the key: the same operation has the same key in every step, "mb0/h.3.mlp/backward"
  UseKind kind = UseKind::forward;
  std::vector<ChunkId> chunks;  // sorted, unique
};

inline constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// Immutable once built. Positions count uses from the start of the step.
class Schedule {
 public:
  Schedule() = default;
  Schedule(std::vector<ScheduledUse> uses, uint32_t chunk_count);

  bool empty() const { return uses_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(uses_.size()); }
  const ScheduledUse& use(uint32_t position) const { return uses_[position]; }
  std::span<const ScheduledUse> uses() const { return uses_; }

  // How many uses after `position` the chunk is used next: 1 for the use right after it. Uses at `position` itself do
  // not count. Wraps into the next step: after its last use in this step a chunk is next used at its first use in the
  // next one. kNever if no use names it. O(log uses of the chunk).
  uint32_t distance_to_next_use(ChunkId chunk, uint32_t position) const;
  // The same without the wrap: kNever when the chunk is not used again in this step.
  uint32_t distance_within_step(ChunkId chunk, uint32_t position) const;

  // The first position >= `from` with this operation key, or kNever.
  uint32_t find(std::string_view operation, uint32_t from) const;

 private:
  std::vector<ScheduledUse> uses_;
  std::vector<std::vector<uint32_t>> positions_;  // per chunk, ascending
};

// Follows a step as it happens, compares it with the schedule of the step before and records the new one.
// Skipped, repeated and unknown operations never fail: they only make the next schedule differ.
class ScheduleCursor {
 public:
  explicit ScheduleCursor(uint32_t chunk_count) : chunk_count_(chunk_count) {}

  // Uses a schedule known beforehand (a dry run) from the next begin_step() on.
  void set_schedule(Schedule schedule) { schedule_ = std::move(schedule); }
  const Schedule& schedule() const { return schedule_; }

  void begin_step();
  // The use that happens now. Returns its position in the schedule, or kNever when the schedule does not have it (the
  // position of the last known use stays in force).
  uint32_t advance(std::string_view operation, UseKind kind, std::span<const ChunkId> chunks);
  // The position of the last use that was found in the schedule; kNever before the first.
  uint32_t position() const { return position_; }
  // Ends the step; when what happened differs from the schedule, what happened becomes the schedule.
  // Returns whether it changed.
  bool end_step();

 private:
  uint32_t chunk_count_;
  Schedule schedule_;
  std::vector<ScheduledUse> recorded_;
  bool deviates_ = false;
  uint32_t position_ = kNever;
};

}  // namespace terrace
