#include <terrace/memory/tier/internal/slot_map.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr uint32_t kWordBits = 64;

// Returns the position of the first set bit at `from` or behind it; kNone if there is none.
constexpr size_t kNone = SIZE_MAX;
size_t next_bit(std::span<const uint64_t> words, size_t from) {
  for (size_t word = from / kWordBits; word < words.size(); ++word) {
    const uint64_t bits =
        word == from / kWordBits ? words[word] & ~uint64_t{0} << from % kWordBits : words[word];
    if (bits != 0) return word * kWordBits + static_cast<size_t>(std::countr_zero(bits));
  }
  return kNone;
}

// Finds the next bit over two levels: `words` has a bit for every word of `bits` that is not 0.
size_t next_bit(std::span<const uint64_t> bits, std::span<const uint64_t> words, size_t from) {
  const size_t word = from / kWordBits;
  if (word >= bits.size()) return kNone;
  const size_t here = next_bit(bits.subspan(word, 1), from % kWordBits);
  if (here != kNone) return word * kWordBits + here;
  const size_t later = next_bit(words, word + 1);
  return later == kNone ? kNone : later * kWordBits + static_cast<size_t>(std::countr_zero(bits[later]));
}

std::string text_of(const StoredBlock& where) {
  return "slot " + std::to_string(where.slot) + " of path " + std::to_string(where.path);
}

}  // namespace

SlotMap::SlotMap(std::vector<uint32_t> slot_counts, size_t block_count) : current_(block_count) {
  for (const uint32_t count : slot_counts) {
    Path path;
    path.slot_count = count;
    path.free_bits.assign(divide_up(count, kWordBits), 0);
    path.free_words.assign(divide_up(path.free_bits.size(), kWordBits), 0);
    for (uint32_t slot = 0; slot < count; ++slot) set_free(path, slot, true);
    path.states.assign(count, SlotState::free);
    path.holders.assign(count, 0);
    paths_.push_back(std::move(path));
    free_slots_.push_back(count);
  }
}

SlotMap::Path& SlotMap::path_of(const StoredBlock& where) {
  TERRACE_ASSERT(where.path < paths_.size() && where.slot < paths_[where.path].slot_count,
                 text_of(where) + " does not exist");
  return paths_[where.path];
}

uint32_t SlotMap::take(uint32_t path_index) {
  TERRACE_ASSERT(path_index < paths_.size() && free_slots_[path_index] > 0,
                 "path " + std::to_string(path_index) + " has no free slot");
  Path& path = paths_[path_index];
  size_t found = next_bit(path.free_bits, path.free_words, path.next);
  if (found == kNone) found = next_bit(path.free_bits, path.free_words, 0);
  TERRACE_ASSERT(found < path.slot_count, "a free slot is counted and not found");
  const auto slot = static_cast<uint32_t>(found);
  path.next = slot + 1;
  set_free(path, slot, false);
  --free_slots_[path_index];
  path.states[slot] = SlotState::writing;
  return slot;
}

void SlotMap::set_free(Path& path, uint32_t slot, bool free) {
  const size_t word = slot / kWordBits;
  const auto set = [](uint64_t& bits, size_t bit, bool to) {
    bits = to ? bits | uint64_t{1} << bit : bits & ~(uint64_t{1} << bit);
  };
  set(path.free_bits[word], slot % kWordBits, free);
  set(path.free_words[word / kWordBits], word % kWordBits, path.free_bits[word] != 0);
}

void SlotMap::release(const StoredBlock& where) {
  Path& path = path_of(where);
  path.states[where.slot] = SlotState::free;
  set_free(path, where.slot, true);
  ++free_slots_[where.path];
}

void SlotMap::hold(const StoredBlock& where) {
  if (where.path != kNoPath) ++path_of(where).holders[where.slot];
}

void SlotMap::let_go(const StoredBlock& where) {
  if (where.path == kNoPath) return;
  Path& path = path_of(where);
  TERRACE_ASSERT(path.states[where.slot] == SlotState::held && path.holders[where.slot] > 0,
                 text_of(where) + " is let go of and nobody holds it");
  if (--path.holders[where.slot] == 0) release(where);
}

void SlotMap::put(size_t block, const StoredBlock& to) {
  Path& path = path_of(to);
  TERRACE_ASSERT(path.states[to.slot] == SlotState::writing, text_of(to) + " was not taken for a write");
  path.states[to.slot] = SlotState::held;
  hold(to);
  let_go(std::exchange(current_[block], to));
}

void SlotMap::put_back(const StoredBlock& taken) {
  TERRACE_ASSERT(path_of(taken).states[taken.slot] == SlotState::writing,
                 text_of(taken) + " was not taken for a write");
  release(taken);
}

void SlotMap::set_aside(const StoredBlock& taken) {
  Path& path = path_of(taken);
  TERRACE_ASSERT(path.states[taken.slot] == SlotState::writing,
                 text_of(taken) + " was not taken for a write");
  path.states[taken.slot] = SlotState::aside;
  ++bad_slots_;
}

void SlotMap::restore(std::span<const StoredBlock> blocks) {
  TERRACE_ASSERT(blocks.size() == current_.size(), "a commit of another number of blocks");
  const uint32_t all = open_snapshot(blocks);
  std::ranges::copy(blocks, current_.begin());
  for (const StoredBlock& where : blocks) hold(where);
  close_snapshot(all);
}

// Makes a snapshot of the blocks of a commit from a manifest. Free slots that it names become held.
uint32_t SlotMap::open_snapshot(std::span<const StoredBlock> blocks) {
  const auto unused =
      std::ranges::find_if(snapshots_, [](const SnapshotEntry& entry) { return !entry.open; });
  const auto number = static_cast<uint32_t>(unused - snapshots_.begin());
  if (unused == snapshots_.end()) snapshots_.emplace_back();
  SnapshotEntry& entry = snapshots_[number];
  entry.blocks.assign(blocks.begin(), blocks.end());
  entry.open = true;
  for (const StoredBlock& where : entry.blocks) {
    if (where.path == kNoPath) continue;
    Path& path = path_of(where);
    if (path.states[where.slot] == SlotState::free) {
      path.states[where.slot] = SlotState::held;
      set_free(path, where.slot, false);
      --free_slots_[where.path];
    }
    TERRACE_ASSERT(path.states[where.slot] == SlotState::held, text_of(where) + " cannot be held");
    hold(where);
  }
  return number;
}

void SlotMap::adopt(uint32_t number, size_t block) {
  TERRACE_ASSERT(number < snapshots_.size() && snapshots_[number].open, "this snapshot has gone");
  hold(current_[block]);
  let_go(std::exchange(snapshots_[number].blocks[block], current_[block]));
}

void SlotMap::close_snapshot(uint32_t number) {
  TERRACE_ASSERT(number < snapshots_.size() && snapshots_[number].open, "this snapshot has gone");
  for (const StoredBlock& where : snapshots_[number].blocks) let_go(where);
  snapshots_[number].open = false;
}

size_t SlotMap::open_snapshot_count() const {
  return static_cast<size_t>(
      std::ranges::count_if(snapshots_, [](const SnapshotEntry& entry) { return entry.open; }));
}

void SlotMap::check() const {
  std::vector<std::vector<uint32_t>> holders;
  for (const Path& path : paths_) holders.emplace_back(path.slot_count);
  const auto count = [&](const StoredBlock& where) {
    if (where.path != kNoPath) ++holders[where.path][where.slot];
  };
  for (const StoredBlock& where : current_) count(where);
  for (const StoredBlock& where : current_) {
    TERRACE_ASSERT(where.path == kNoPath || holders[where.path][where.slot] == 1,
                   "two blocks lie in " + text_of(where));
  }
  for (const SnapshotEntry& entry : snapshots_) {
    if (entry.open) std::ranges::for_each(entry.blocks, count);
  }
  uint64_t aside = 0;
  for (uint32_t p = 0; p < paths_.size(); ++p) {
    const Path& path = paths_[p];
    uint64_t free = 0;
    for (uint32_t s = 0; s < path.slot_count; ++s) {
      const bool free_bit = (path.free_bits[s / kWordBits] >> (s % kWordBits) & 1) != 0;
      const StoredBlock where{.path = p, .slot = s};
      TERRACE_ASSERT(path.holders[s] == holders[p][s], text_of(where) + " is held by " +
                                                           std::to_string(holders[p][s]) + " and counts " +
                                                           std::to_string(path.holders[s]));
      TERRACE_ASSERT((path.states[s] == SlotState::held) == (holders[p][s] > 0),
                     text_of(where) + " has the wrong state");
      TERRACE_ASSERT((path.states[s] == SlotState::free) == free_bit, text_of(where) + " is free or not");
      const size_t word = s / kWordBits;
      TERRACE_ASSERT(!free_bit || (path.free_words[word / kWordBits] >> (word % kWordBits) & 1) != 0,
                     text_of(where) + " is out of sight");
      free += free_bit ? 1 : 0;
      aside += path.states[s] == SlotState::aside ? 1 : 0;
    }
    TERRACE_ASSERT(free == free_slots_[p], "path " + std::to_string(p) + " miscounts its free slots");
  }
  TERRACE_ASSERT(aside == bad_slots_, "slots that were set aside are miscounted");
}

}  // namespace terrace
