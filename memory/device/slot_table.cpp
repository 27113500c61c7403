#include <terrace/memory/device/slot_table.h>

#include <algorithm>
#include <limits>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {

void SlotEntry::require_idle(const char* intention) const {
  const uint32_t copies = copies_in_flight.load(std::memory_order_acquire);
  TERRACE_ASSERT(copies == 0, std::string("cannot ") + intention + " a slot with " + std::to_string(copies) +
                                  " copies in flight");
}

void SlotEntry::require_has(uint64_t offset, uint64_t count) const {
  TERRACE_ASSERT(offset <= bytes && count <= bytes - offset,
                 "bytes " + std::to_string(offset) + " + " + std::to_string(count) +
                     " are not in a slot of " + std::to_string(bytes));
}

SlotTable::SlotTable(uint64_t budget_bytes, uint64_t granularity_bytes)
    : budget_bytes_(budget_bytes), granularity_bytes_(granularity_bytes) {}

void SlotTable::charge(uint64_t bytes, std::string_view purpose) {
  const uint64_t free_bytes = budget_bytes_ - used_bytes_;
  if (bytes > free_bytes) {
    throw Error(ErrorKind::capacity,
                {"cannot allocate device memory for", std::string(purpose),
                 std::to_string(bytes) + " bytes (" + format_bytes(bytes) +
                     ") are needed, and of the budget of " + std::to_string(budget_bytes_) + " bytes (" +
                     format_bytes(budget_bytes_) + ") " + std::to_string(free_bytes) + " are free",
                 "give the device a larger budget, or choose smaller chunks or micro-batches"});
  }
  used_bytes_ += bytes;
}

uint64_t SlotTable::total_bytes(uint64_t slot_bytes, uint32_t count) const {
  TERRACE_ASSERT(slot_bytes > 0 && slot_bytes % granularity_bytes_ == 0,
                 "slots of " + std::to_string(slot_bytes) + " bytes are not whole pages");
  TERRACE_ASSERT(count == 0 || slot_bytes <= std::numeric_limits<uint64_t>::max() / count,
                 "the size of " + std::to_string(count) + " slots overflows");
  return slot_bytes * count;
}

DeviceSlot SlotTable::add_slot(std::byte* home, uint64_t bytes) {
  slots_.push_back(std::make_unique<SlotEntry>(home, bytes));
  attached_.reserve(slots_.size());
  return DeviceSlot{static_cast<uint32_t>(slots_.size() - 1)};
}

SlotEntry& SlotTable::at(DeviceSlot slot) const {
  TERRACE_ASSERT(index_of(slot) < slots_.size(), "there is no device slot " + std::to_string(index_of(slot)));
  return *slots_[index_of(slot)];
}

std::vector<SlotEntry*>::const_iterator SlotTable::place_of(const std::byte* address) const {
  return std::partition_point(attached_.begin(), attached_.end(),
                              [&](const SlotEntry* other) { return other->memory().data() < address; });
}

void SlotTable::require_attachable(DeviceSlot id, const std::byte* address) const {
  const SlotEntry& slot = at(id);
  TERRACE_ASSERT(!slot.is_attached(), "device slot " + std::to_string(index_of(id)) + " is attached already");
  slot.require_idle("attach");
  const bool reserved = std::any_of(reserved_.begin(), reserved_.end(), [&](std::span<std::byte> range) {
    if (address < range.data() || address >= range.data() + range.size()) return false;
    const auto offset = static_cast<uint64_t>(address - range.data());
    return offset % granularity_bytes_ == 0 && slot.bytes <= range.size() - offset;
  });
  TERRACE_ASSERT(reserved,
                 "a slot of " + std::to_string(slot.bytes) + " bytes does not fit the reserved addresses");
  const auto next = place_of(address);
  const bool meets_next = next != attached_.end() && address + slot.bytes > (*next)->memory().data();
  const bool meets_previous =
      next != attached_.begin() && (*(next - 1))->memory().data() + (*(next - 1))->bytes > address;
  TERRACE_ASSERT(!meets_next && !meets_previous, "another slot is attached at these addresses");
}

void SlotTable::require_attached(DeviceSlot id) const {
  TERRACE_ASSERT(at(id).is_attached(), "device slot " + std::to_string(index_of(id)) + " is not attached");
}

void SlotTable::note_attached(DeviceSlot id, std::byte* address) {
  SlotEntry& slot = at(id);
  attached_.insert(place_of(address), &slot);
  slot.address.store(address, std::memory_order_relaxed);
}

void SlotTable::note_detached(DeviceSlot id) {
  SlotEntry& slot = at(id);
  attached_.erase(place_of(slot.memory().data()));
  slot.address.store(nullptr, std::memory_order_relaxed);
}

std::byte* SlotTable::begin_copy(DeviceSlot id, uint64_t offset, uint64_t bytes, const Event& done) const {
  SlotEntry& slot = at(id);
  TERRACE_ASSERT(!slot.is_attached(), "a copy acts on a detached slot");
  slot.require_has(offset, bytes);
  require_begun(done);
  slot.copies_in_flight.fetch_add(1, std::memory_order_relaxed);
  return slot.home + offset;
}

CopyTask SlotTable::to_slot(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note) const {
  TERRACE_ASSERT(source != nullptr || bytes == 0, "a copy to the device needs a source");
  return {.destination = begin_copy(slot, offset, bytes, done),
          .source = source,
          .bytes = bytes,
          .after = after,
          .done = &done,
          .in_flight = &at(slot).copies_in_flight,
          .note = note};
}

CopyTask SlotTable::from_slot(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                              const Event* after, Event& done, const CopyNote& note) const {
  return {.destination = destination,
          .source = begin_copy(slot, offset, bytes, done),
          .bytes = bytes,
          .after = after,
          .done = &done,
          .in_flight = &at(slot).copies_in_flight,
          .note = note};
}

CopyTask SlotTable::to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after,
                            Event& done, const CopyNote& note) const {
  TERRACE_ASSERT(source != nullptr || bytes == 0, "a copy to the device needs a source");
  require_work_memory(work, bytes);
  return without_slot(work, source, bytes, after, done, note);
}

CopyTask SlotTable::within(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                           const Event* after, Event& done) const {
  require_work_memory(work, bytes);
  return to_slot(slot, offset, work, bytes, after, done, {});
}

CopyTask SlotTable::out_within(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                               const Event* after, Event& done) const {
  require_work_memory(work, bytes);
  return from_slot(work, slot, offset, bytes, after, done, {});
}

CopyTask SlotTable::from_work(std::byte* destination, const std::byte* work, uint64_t bytes,
                              const Event* after, Event& done, const CopyNote& note) const {
  require_work_memory(work, bytes);
  return without_slot(destination, work, bytes, after, done, note);
}

CopyTask SlotTable::without_slot(std::byte* destination, const std::byte* source, uint64_t bytes,
                                 const Event* after, Event& done, const CopyNote& note) {
  TERRACE_ASSERT((destination != nullptr && source != nullptr) || bytes == 0, "a copy has two ends");
  require_begun(done);
  return {.destination = destination,
          .source = source,
          .bytes = bytes,
          .after = after,
          .done = &done,
          .note = note};
}

std::byte* SlotTable::begin_fills(DeviceSlot id, uint32_t part_count) const {
  SlotEntry& slot = at(id);
  TERRACE_ASSERT(!slot.is_attached(), "a detached slot is filled");
  slot.copies_in_flight.fetch_add(part_count, std::memory_order_relaxed);
  return slot.home;
}

void SlotTable::end_fill(DeviceSlot id) const noexcept {
  const uint32_t before = at(id).copies_in_flight.fetch_sub(1, std::memory_order_release);
  TERRACE_ASSERT(before > 0, "nobody fills this slot");
}

std::span<std::byte> SlotTable::idle_memory(DeviceSlot id, uint64_t offset, uint64_t bytes,
                                            const char* intention) const {
  const SlotEntry& slot = at(id);
  slot.require_idle(intention);
  slot.require_has(offset, bytes);
  return slot.memory().subspan(offset, bytes);
}

void SlotTable::require_begun(const Event& done) {
  TERRACE_ASSERT(!done.done(), "a copy completes an event that was begun");
}

void SlotTable::require_work_memory(const std::byte* work, uint64_t bytes) const {
  const bool inside = std::any_of(work_memory_.begin(), work_memory_.end(), [&](std::span<std::byte> piece) {
    const std::byte* const end = piece.data() + piece.size();
    return work >= piece.data() && work <= end && bytes <= static_cast<uint64_t>(end - work);
  });
  TERRACE_ASSERT(inside, std::to_string(bytes) + " bytes are not all work memory of the device");
}

}  // namespace terrace
