#include <terrace/memory/space/schedule.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include <terrace/base/assert.h>

namespace terrace {

Schedule::Schedule(std::vector<ScheduledUse> uses, uint32_t chunk_count, std::vector<bool> renewed)
    : uses_(std::move(uses)), renewed_(std::move(renewed)) {
  TERRACE_ASSERT(renewed_.empty() || renewed_.size() == chunk_count,
                 std::to_string(renewed_.size()) + " marks for " + std::to_string(chunk_count) + " chunks");
  TERRACE_ASSERT(uses_.size() < kNever, std::to_string(uses_.size()) + " uses");
  position_begin_.assign(chunk_count + size_t{1}, 0);
  uint64_t total = 0;
  for (const ScheduledUse& use : uses_) {
    const auto unordered =
        std::adjacent_find(use.chunks.begin(), use.chunks.end(), std::greater_equal<ChunkId>());
    TERRACE_ASSERT(unordered == use.chunks.end(),
                   "the chunks of \"" + use.operation + "\" are not sorted and unique");
    TERRACE_ASSERT(use.chunks.empty() || index_of(use.chunks.back()) < chunk_count,
                   "\"" + use.operation + "\" names chunk " + std::to_string(index_of(use.chunks.back())) +
                       " of " + std::to_string(chunk_count));
    for (ChunkId chunk : use.chunks) ++position_begin_[index_of(chunk) + size_t{1}];
    total += use.chunks.size();
  }
  TERRACE_ASSERT(total < kNever, std::to_string(total) + " chunk uses");
  std::partial_sum(position_begin_.begin(), position_begin_.end(), position_begin_.begin());

  positions_.resize(total);
  std::vector<uint32_t> next(position_begin_.begin(), position_begin_.end() - 1);
  for (uint32_t position = 0; position < uses_.size(); ++position) {
    for (ChunkId chunk : uses_[position].chunks) positions_[next[index_of(chunk)]++] = position;
  }

  by_operation_.resize(uses_.size());
  std::iota(by_operation_.begin(), by_operation_.end(), uint32_t{0});
  std::sort(by_operation_.begin(), by_operation_.end(), [this](uint32_t a, uint32_t b) {
    const int order = uses_[a].operation.compare(uses_[b].operation);
    return order != 0 ? order < 0 : a < b;
  });
}

std::span<const uint32_t> Schedule::positions_of(ChunkId chunk) const {
  if (uses_.empty()) return {};
  const size_t index = index_of(chunk);
  TERRACE_ASSERT(index + 1 < position_begin_.size(), "no chunk " + std::to_string(index));
  return std::span(positions_)
      .subspan(position_begin_[index], position_begin_[index + 1] - position_begin_[index]);
}

uint32_t Schedule::distance_to_next_use(ChunkId chunk, uint32_t position) const {
  if (!renewed_.empty() && renewed_[index_of(chunk)]) return distance_within_step(chunk, position);
  return distance_across_steps(chunk, position);
}

uint32_t Schedule::distance_across_steps(ChunkId chunk, uint32_t position) const {
  const std::span<const uint32_t> positions = positions_of(chunk);
  if (positions.empty()) return kNever;
  const uint32_t within = distance_within_step(chunk, position);
  // Without a later use in the step the next one is at or before `position`, so `position` is one of this
  // schedule and the sum does not overflow.
  return within != kNever ? within : size() - position + positions.front();
}

uint32_t Schedule::distance_within_step(ChunkId chunk, uint32_t position) const {
  TERRACE_ASSERT(position == kNever || uses_.empty() || position < size(),
                 "position " + std::to_string(position) + " of " + std::to_string(size()));
  const std::span<const uint32_t> positions = positions_of(chunk);
  const uint32_t first = position == kNever ? 0 : position + 1;
  const auto next = std::lower_bound(positions.begin(), positions.end(), first);
  return next == positions.end() ? kNever : *next - first + 1;
}

uint32_t Schedule::find(std::string_view operation, uint32_t from) const {
  const auto entry = std::lower_bound(by_operation_.begin(), by_operation_.end(), from,
                                      [&](uint32_t position, uint32_t least) {
                                        const int order = uses_[position].operation.compare(operation);
                                        return order != 0 ? order < 0 : position < least;
                                      });
  if (entry == by_operation_.end() || uses_[*entry].operation != operation) return kNever;
  return *entry;
}

void ScheduleCursor::set_schedule(Schedule schedule) {
  TERRACE_ASSERT(!in_step_, "a schedule is announced between steps, not within one");
  schedule_ = std::move(schedule);
}

void ScheduleCursor::begin_step() {
  in_step_ = true;
  position_ = kNever;
  deviates_ = false;
  matched_count_ = 0;
  recorded_.clear();
}

uint32_t ScheduleCursor::advance(std::string_view operation, UseKind kind, std::span<const ChunkId> chunks,
                                 uint32_t occupied_slots) {
  if (!in_step_) return kNever;
  record(operation, kind, chunks, occupied_slots);
  const uint32_t found = locate(operation, kind);
  if (found != kNever) position_ = found;
  return found;
}

uint32_t ScheduleCursor::locate(std::string_view operation, UseKind kind) const {
  const uint32_t expected = position_ == kNever ? 0 : position_ + 1;
  const auto is_this = [&](uint32_t position) { return schedule_.use(position).kind == kind; };
  if (expected < schedule_.size() && is_this(expected) && schedule_.use(expected).operation == operation) {
    return expected;
  }
  uint32_t found = schedule_.find(operation, expected);
  while (found != kNever && !is_this(found)) found = schedule_.find(operation, found + 1);
  if (found != kNever) return found;
  found = schedule_.find(operation, 0);
  while (found != kNever && found < expected && !is_this(found)) found = schedule_.find(operation, found + 1);
  return found < expected ? found : kNever;
}

void ScheduleCursor::record(std::string_view operation, UseKind kind, std::span<const ChunkId> chunks,
                            uint32_t occupied_slots) {
  if (!deviates_) {
    if (matched_count_ < schedule_.size()) {
      const ScheduledUse& use = schedule_.use(matched_count_);
      if (use.kind == kind && use.occupied_slots == occupied_slots && use.operation == operation &&
          std::ranges::equal(use.chunks, chunks)) {
        ++matched_count_;
        return;
      }
    }
    start_recording();
  }
  recorded_.push_back({std::string(operation), kind, {chunks.begin(), chunks.end()}, occupied_slots});
}

void ScheduleCursor::start_recording() {
  const std::span<const ScheduledUse> matched = schedule_.uses().first(matched_count_);
  recorded_.assign(matched.begin(), matched.end());
  deviates_ = true;
}

bool ScheduleCursor::end_step() {
  TERRACE_ASSERT(in_step_, "end_step() without begin_step()");
  in_step_ = false;
  position_ = kNever;
  if (!deviates_) {
    if (matched_count_ == schedule_.size()) return false;
    start_recording();  // the step ended early
  }
  schedule_ = Schedule(std::move(recorded_), chunk_count_, renewed_);
  recorded_.clear();
  return true;
}

}  // namespace terrace
