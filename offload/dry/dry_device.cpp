#include <terrace/offload/dry/dry_device.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {

void DryDevice::charge(uint64_t bytes, std::string_view purpose) {
  const uint64_t free_bytes = budget_bytes_ - used_bytes_;
  if (bytes > free_bytes) {
    throw Error(ErrorKind::capacity,
                {"cannot plan device memory for", std::string(purpose),
                 fmt::format("{} bytes are needed, and of the budget of {} bytes {} are free", bytes,
                             budget_bytes_, free_bytes),
                 "give the device a larger budget, or choose smaller chunks or micro-batches"});
  }
  used_bytes_ += bytes;
}

std::byte* DryDevice::reserve_addresses(uint64_t bytes) {
  addresses_.push_back(PageMapping::inaccessible(round_up(std::max<uint64_t>(bytes, 1), page_bytes())));
  return addresses_.back().memory().data();
}

std::vector<DeviceSlot> DryDevice::create_slots(uint64_t slot_bytes, uint32_t count,
                                                std::string_view purpose) {
  charge(slot_bytes * count, purpose);
  std::vector<DeviceSlot> made;
  for (uint32_t s = 0; s < count; ++s) {
    made.push_back(DeviceSlot{static_cast<uint32_t>(slots_.size())});
    slots_.push_back({slot_bytes, false});
  }
  return made;
}

std::span<std::byte> DryDevice::allocate_work_memory(uint64_t bytes) {
  if (bytes == 0) return {};
  charge(round_up(bytes, page_bytes()), "work memory");
  return {reserve_addresses(bytes), bytes};
}

// Returns the slot's place in the reserved addresses that hold `address`.
uint32_t DryDevice::place_of(const std::byte* address, uint64_t slot_bytes) const {
  for (const PageMapping& piece : addresses_) {
    const std::byte* const begin = piece.memory().data();
    if (address >= begin && address < begin + piece.memory().size())
      return static_cast<uint32_t>(static_cast<uint64_t>(address - begin) / slot_bytes);
  }
  TERRACE_ASSERT(false, "a slot is attached outside of reserved addresses");
  return 0;
}

void DryDevice::attach(DeviceSlot slot, std::byte* address) {
  require_detached(slot);
  slots_[index_of(slot)].attached = true;
  const uint32_t place = place_of(address, slot_bytes(slot));
  if (record_ != nullptr) record_->add({RecordedEvent::Kind::attach, index_of(slot), place});
}

void DryDevice::zero_in_order(DeviceSlot slot, uint64_t, uint64_t bytes) {
  note(RecordedEvent::Kind::clear, slot, bytes);
}

void DryDevice::fill_in_order(DeviceSlot slot, uint64_t, const std::byte*, uint64_t bytes) {
  note(RecordedEvent::Kind::clear, slot, bytes);
}

void DryDevice::note(RecordedEvent::Kind kind, DeviceSlot slot, uint64_t bytes) {
  if (record_ != nullptr) record_->add({kind, index_of(slot), bytes});
}

void DryDevice::detach(DeviceSlot slot) {
  TERRACE_ASSERT(attached(slot), "only what is attached is detached");
  slots_[index_of(slot)].attached = false;
  note(RecordedEvent::Kind::detach, slot, 0);
}

void DryDevice::require_detached(DeviceSlot slot) const {
  TERRACE_ASSERT(!attached(slot), fmt::format("device slot {} is attached", index_of(slot)));
}

void DryDevice::copy(std::atomic<uint64_t>& counted, uint64_t bytes, const Event* after, Event& done) {
  TERRACE_ASSERT(!done.done(), "a copy completes an event that was begun");
  if (after != nullptr) after->wait_done();
  const std::exception_ptr failure = after != nullptr ? after->failure() : nullptr;
  if (failure == nullptr) counted.fetch_add(bytes, std::memory_order_relaxed);
  done.complete_one(failure);
}

void DryDevice::copy_to_device(DeviceSlot slot, uint64_t, const std::byte*, uint64_t bytes,
                               const Event* after, Event& done, const CopyNote&) {
  require_detached(slot);
  copy(h2d_bytes_, bytes, after, done);
  note(RecordedEvent::Kind::copy_in, slot, bytes);
}

void DryDevice::copy_to_host(std::byte*, DeviceSlot slot, uint64_t, uint64_t bytes, const Event* after,
                             Event& done, const CopyNote&) {
  require_detached(slot);
  copy(d2h_bytes_, bytes, after, done);
  note(RecordedEvent::Kind::copy_out, slot, bytes);
}

std::byte* DryDevice::begin_fills(DeviceSlot slot, uint32_t, const Event* after) {
  require_detached(slot);
  if (after != nullptr) after->wait_done();
  note(RecordedEvent::Kind::read_in, slot, slot_bytes(slot));
  return const_cast<std::byte*>(home(slot));
}

// Aligned as every slot is, but not memory.
const std::byte* DryDevice::home(DeviceSlot) const {
  return reinterpret_cast<const std::byte*>(page_bytes());
}

void DryDevice::copy_to_work(std::byte*, const std::byte*, uint64_t bytes, const Event* after, Event& done,
                             const CopyNote&) {
  copy(h2d_bytes_, bytes, after, done);
  note(RecordedEvent::Kind::work_in, DeviceSlot{}, bytes);
}

void DryDevice::copy_work_to_host(std::byte*, const std::byte*, uint64_t bytes, const Event* after,
                                  Event& done, const CopyNote&) {
  copy(d2h_bytes_, bytes, after, done);
  note(RecordedEvent::Kind::work_out, DeviceSlot{}, bytes);
}

void DryDevice::copy_to_program(std::byte*, const std::byte*, uint64_t bytes, const Event* after, Event& done,
                                const CopyNote&) {
  copy(h2d_bytes_, bytes, after, done);
}

void DryDevice::copy_program_to_host(std::byte*, const std::byte*, uint64_t bytes, const Event* after,
                                     Event& done, const CopyNote&) {
  copy(d2h_bytes_, bytes, after, done);
}

// It takes no time beside what it waits for.
void DryDevice::copy_work_to_slot(DeviceSlot slot, uint64_t, const std::byte*, uint64_t, const Event* after,
                                  Event& done) {
  require_detached(slot);
  std::atomic<uint64_t> crosses_no_link{0};
  copy(crosses_no_link, 0, after, done);
  note(RecordedEvent::Kind::copy_in, slot, 0);
}

void DryDevice::copy_slot_to_work(std::byte*, DeviceSlot slot, uint64_t, uint64_t, const Event* after,
                                  Event& done) {
  require_detached(slot);
  std::atomic<uint64_t> crosses_no_link{0};
  copy(crosses_no_link, 0, after, done);
  note(RecordedEvent::Kind::copy_out, slot, 0);
}

}  // namespace terrace
