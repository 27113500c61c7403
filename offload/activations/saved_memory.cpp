#include <terrace/offload/activations/saved_memory.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

namespace terrace {

SavedMemory::SavedMemory(const Limits& limits, Device& device, Log& log)
    : granule_bytes_(limits.granule_bytes),
      lock_pages_(limits.lock_pages),
      device_(device),
      log_(log),
      most_bytes_(limits.most_bytes / HostArena::kAlignment * HostArena::kAlignment) {
  TERRACE_ASSERT(granule_bytes_ % HostArena::kAlignment == 0, "blocks suit direct I/O");
}

SavedMemory::Gap SavedMemory::first_gap(uint64_t bytes) const {
  uint64_t begin = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (blocks_[b].offset - begin >= bytes) return {begin, b};
    begin = blocks_[b].offset + blocks_[b].bytes;
  }
  return {begin, blocks_.size()};
}

bool SavedMemory::has_room_for(uint64_t bytes) const {
  const uint64_t cost = cost_bytes(bytes);
  return cost <= most_bytes_ && first_gap(cost).offset <= most_bytes_ - cost;
}

std::byte* SavedMemory::take(uint64_t bytes) {
  if (!has_room_for(bytes)) return nullptr;
  const uint64_t cost = cost_bytes(bytes);
  const Gap gap = first_gap(cost);
  if (gap.offset + cost > held_bytes_) grow(gap.offset + cost);
  blocks_.insert(blocks_.begin() + static_cast<ptrdiff_t>(gap.before), {gap.offset, cost});
  used_bytes_ += cost;
  return base() + gap.offset;
}

void SavedMemory::give_back(const std::byte* block) {
  const auto offset = static_cast<uint64_t>(block - base());
  const auto found = std::ranges::lower_bound(blocks_, offset, {}, &Block::offset);
  TERRACE_ASSERT(found != blocks_.end() && found->offset == offset, "a block is given back once");
  used_bytes_ -= found->bytes;
  blocks_.erase(found);
}

// Pages are huge where the budget has one, and come as a whole then: so they are counted.
void SavedMemory::grow(uint64_t end) {
  if (arena_ == nullptr) {
    arena_ = std::make_unique<HostArena>(
        HostArenaOptions{.budget_bytes = most_bytes_, .lock_pages = lock_pages_, .is_empty_at_first = true},
        log_);
    memory_ = arena_->take(most_bytes_, "saved activations");
  }
  const uint64_t wanted = std::min(round_up(end, kHugePageBytes), most_bytes_);
  const std::span<std::byte> more = part(held_bytes_, wanted);
  arena_->restore(more);
  pieces_.push_back({wanted, lock_pages_ ? device_.lock_host_memory(more) : nullptr});
  held_bytes_ = wanted;
}

void SavedMemory::for_each_piece(const std::byte* block, uint64_t bytes,
                                 FunctionRef<void(uint64_t offset, uint64_t bytes)> copy) const {
  const auto begin = static_cast<uint64_t>(block - base());
  auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::end);
  for (uint64_t done = 0; done < bytes; ++piece) {
    const uint64_t length = std::min(bytes - done, piece->end - (begin + done));
    copy(done, length);
    done += length;
  }
}

void SavedMemory::set_most(uint64_t bytes) {
  const uint64_t most = bytes / HostArena::kAlignment * HostArena::kAlignment;
  TERRACE_ASSERT(arena_ == nullptr || most <= memory_.size(), "a budget is at most the first one");
  TERRACE_ASSERT(blocks_.empty() || blocks_.back().offset + blocks_.back().bytes <= most,
                 "a block lies above the budget");
  most_bytes_ = most;
  while (held_bytes_ > most) {
    const uint64_t begin = pieces_.size() > 1 ? pieces_[pieces_.size() - 2].end : 0;
    const uint64_t end = std::max(begin, most);
    pieces_.back().lock.reset();
    arena_->release(part(end, held_bytes_));
    held_bytes_ = end;
    if (end == begin) {
      pieces_.pop_back();
      continue;
    }
    pieces_.back() = {end, lock_pages_ ? device_.lock_host_memory(part(begin, end)) : nullptr};
  }
}

}  // namespace terrace
