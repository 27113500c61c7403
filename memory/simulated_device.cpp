#include <terrace/memory/simulated_device.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

// As fp32 a signalling NaN, as two bf16 two signalling NaNs, as two fp16 two (quiet) NaNs: every bit pattern
// that is a signalling NaN in bf16 has fp16's quiet bit set.
constexpr uint32_t kPoison = 0x7fa07fa0u;

void fill_with_poison(std::span<std::byte> memory) {
  auto* const words = reinterpret_cast<uint32_t*>(memory.data());
  std::fill_n(words, memory.size() / sizeof(uint32_t), kPoison);
}

}  // namespace

struct SimulatedDevice::Slot {
  Slot(std::byte* home_, uint64_t bytes_) : home(home_), bytes(bytes_) {}

  std::byte* const home;
  const uint64_t bytes;
  // Null while detached. Atomic for the handler of a stray access, which may run on any thread.
  std::atomic<std::byte*> address = nullptr;
  std::atomic<uint32_t> copies_in_flight = 0;

  bool is_attached() const { return address.load(std::memory_order_relaxed) != nullptr; }
  std::span<std::byte> memory() const {
    std::byte* const flat = address.load(std::memory_order_relaxed);
    return {flat != nullptr ? flat : home, bytes};
  }
  void require_idle(const char* intention) const {
    const uint32_t copies = copies_in_flight.load(std::memory_order_acquire);
    TERRACE_ASSERT(copies == 0, std::string("cannot ") + intention + " a slot with " +
                                    std::to_string(copies) + " copies in flight");
  }
};

// The homes of the slots of one create_slots(), in one mapping.
struct SimulatedDevice::Pool final : GuardDescriber {
  Pool(uint64_t slot_bytes_, uint32_t count, std::string_view purpose_)
      : slot_bytes(slot_bytes_),
        purpose(purpose_),
        homes(PageMapping::populated(slot_bytes * count, slot_bytes % kHugePageBytes == 0, purpose)) {}

  void describe(const std::byte* address, SignalSafeText& out) const noexcept override {
    const uint64_t index = static_cast<uint64_t>(address - homes.memory().data()) / slot_bytes;
    out.text("the home of slot ").decimal(index).text(" of the device's ").text(purpose);
    std::byte* const flat = slots[index]->address.load(std::memory_order_relaxed);
    if (flat != nullptr) out.text(", whose memory is attached at ").hex(reinterpret_cast<uintptr_t>(flat));
  }

  const uint64_t slot_bytes;
  const std::string purpose;
  const PageMapping homes;
  std::vector<const Slot*> slots;
  std::optional<StrictGuard> guard;
};

SimulatedDevice::SimulatedDevice(SimulatedDeviceOptions options)
    : options_(options),
      move_method_(probe_move_method()),
      to_device_({.link_bytes_per_second = options.h2d_bytes_per_second}),
      to_host_({.link_bytes_per_second = options.d2h_bytes_per_second}) {}

SimulatedDevice::~SimulatedDevice() = default;

SimulatedDevice::Slot& SimulatedDevice::slot_at(DeviceSlot slot) {
  TERRACE_ASSERT(index_of(slot) < slots_.size(), "there is no device slot " + std::to_string(index_of(slot)));
  return *slots_[index_of(slot)];
}

const SimulatedDevice::Slot& SimulatedDevice::slot_at(DeviceSlot slot) const {
  TERRACE_ASSERT(index_of(slot) < slots_.size(), "there is no device slot " + std::to_string(index_of(slot)));
  return *slots_[index_of(slot)];
}

void SimulatedDevice::charge(uint64_t bytes, std::string_view purpose) {
  const uint64_t free_bytes = options_.budget_bytes - used_bytes_;
  if (bytes > free_bytes) {
    throw Error(
        ErrorKind::capacity,
        {"cannot allocate device memory for", std::string(purpose),
         std::to_string(bytes) + " bytes (" + format_bytes(bytes) + ") are needed, and of the budget of " +
             std::to_string(options_.budget_bytes) + " bytes (" + format_bytes(options_.budget_bytes) + ") " +
             std::to_string(free_bytes) + " are free",
         "give the device a larger budget, or choose smaller chunks or micro-batches"});
  }
  used_bytes_ += bytes;
}

std::byte* SimulatedDevice::reserve_addresses(uint64_t bytes) {
  reserved_.push_back(PageMapping::inaccessible(round_up(std::max<uint64_t>(bytes, 1), page_bytes())));
  return reserved_.back().memory().data();
}

std::vector<DeviceSlot> SimulatedDevice::create_slots(uint64_t slot_bytes, uint32_t count,
                                                      std::string_view purpose) {
  TERRACE_ASSERT(slot_bytes > 0 && slot_bytes % page_bytes() == 0,
                 "slots of " + std::to_string(slot_bytes) + " bytes are not whole pages");
  TERRACE_ASSERT(count == 0 || slot_bytes <= std::numeric_limits<uint64_t>::max() / count,
                 "the size of " + std::to_string(count) + " slots overflows");
  if (count == 0) return {};
  const uint64_t bytes = slot_bytes * count;
  charge(bytes, purpose);
  try {
    pools_.push_back(std::make_unique<Pool>(slot_bytes, count, purpose));
  } catch (...) {
    used_bytes_ -= bytes;
    throw;
  }
  Pool& pool = *pools_.back();
  if (options_.strict) fill_with_poison(pool.homes.memory());

  std::vector<DeviceSlot> result;
  for (uint32_t s = 0; s < count; ++s) {
    result.push_back(DeviceSlot{static_cast<uint32_t>(slots_.size())});
    slots_.push_back(std::make_unique<Slot>(pool.homes.memory().data() + s * slot_bytes, slot_bytes));
    pool.slots.push_back(slots_.back().get());
  }
  attached_.reserve(slots_.size());  // attach() allocates nothing
  if (options_.strict) pool.guard.emplace(pool.homes.memory(), pool);
  return result;
}

uint64_t SimulatedDevice::slot_bytes(DeviceSlot slot) const {
  return slot_at(slot).bytes;
}

std::span<std::byte> SimulatedDevice::allocate_work_memory(uint64_t bytes) {
  if (bytes == 0) return {};
  const uint64_t mapped_bytes = round_up(bytes, page_bytes());
  charge(mapped_bytes, "work memory");
  try {
    work_memory_.push_back(
        PageMapping::populated(mapped_bytes, mapped_bytes >= kHugePageBytes, "work memory"));
  } catch (...) {
    used_bytes_ -= mapped_bytes;
    throw;
  }
  const std::span<std::byte> memory = work_memory_.back().memory();
  if (options_.strict) fill_with_poison(memory);
  return memory.first(bytes);
}

std::vector<SimulatedDevice::Slot*>::iterator SimulatedDevice::place_for(const Slot& slot,
                                                                         const std::byte* address) {
  const bool reserved = std::any_of(reserved_.begin(), reserved_.end(), [&](const PageMapping& range) {
    const std::byte* const begin = range.memory().data();
    if (address < begin || address >= begin + range.memory().size()) return false;
    const auto offset = static_cast<uint64_t>(address - begin);
    return offset % page_bytes() == 0 && slot.bytes <= range.memory().size() - offset;
  });
  TERRACE_ASSERT(reserved,
                 "a slot of " + std::to_string(slot.bytes) + " bytes does not fit the reserved addresses");
  const auto next = std::partition_point(attached_.begin(), attached_.end(),
                                         [&](const Slot* other) { return other->memory().data() < address; });
  const bool meets_next = next != attached_.end() && address + slot.bytes > (*next)->memory().data();
  const bool meets_previous =
      next != attached_.begin() && (*(next - 1))->memory().data() + (*(next - 1))->bytes > address;
  TERRACE_ASSERT(!meets_next && !meets_previous, "another slot is attached at these addresses");
  return next;
}

void SimulatedDevice::attach(DeviceSlot id, std::byte* address) {
  Slot& slot = slot_at(id);
  TERRACE_ASSERT(!slot.is_attached(), "device slot " + std::to_string(index_of(id)) + " is attached already");
  slot.require_idle("attach");
  const auto place = place_for(slot, address);
  move_pages(slot.home, address, slot.bytes, move_method_);
  slot.address.store(address, std::memory_order_relaxed);
  attached_.insert(place, &slot);
}

void SimulatedDevice::detach(DeviceSlot id) {
  Slot& slot = slot_at(id);
  TERRACE_ASSERT(slot.is_attached(), "device slot " + std::to_string(index_of(id)) + " is not attached");
  std::byte* const address = slot.memory().data();
  move_pages(address, slot.home, slot.bytes, move_method_);
  const auto place = std::partition_point(attached_.begin(), attached_.end(), [&](const Slot* other) {
    return other->memory().data() < address;
  });
  attached_.erase(place);
  slot.address.store(nullptr, std::memory_order_relaxed);
}

bool SimulatedDevice::attached(DeviceSlot slot) const {
  return slot_at(slot).is_attached();
}

std::byte* SimulatedDevice::begin_copy(Slot& slot, uint64_t offset, uint64_t bytes, const Event& done) {
  TERRACE_ASSERT(!slot.is_attached(), "a copy acts on a detached slot");
  TERRACE_ASSERT(offset <= slot.bytes && bytes <= slot.bytes - offset,
                 "bytes " + std::to_string(offset) + " + " + std::to_string(bytes) +
                     " are not in a slot of " + std::to_string(slot.bytes));
  require_begun(done);
  slot.copies_in_flight.fetch_add(1, std::memory_order_relaxed);
  return slot.home + offset;
}

void SimulatedDevice::copy_to_device(DeviceSlot id, uint64_t offset, const std::byte* source, uint64_t bytes,
                                     const Event* after, Event& done, const CopyNote& note) {
  TERRACE_ASSERT(source != nullptr || bytes == 0, "a copy to the device needs a source");
  Slot& slot = slot_at(id);
  std::byte* const destination = begin_copy(slot, offset, bytes, done);
  to_device_.enqueue({destination, source, bytes, after, &done, &slot.copies_in_flight, note});
}

void SimulatedDevice::copy_to_host(std::byte* destination, DeviceSlot id, uint64_t offset, uint64_t bytes,
                                   const Event* after, Event& done, const CopyNote& note) {
  Slot& slot = slot_at(id);
  const std::byte* const source = begin_copy(slot, offset, bytes, done);
  to_host_.enqueue({destination, source, bytes, after, &done, &slot.copies_in_flight, note});
}

void SimulatedDevice::require_begun(const Event& done) {
  TERRACE_ASSERT(!done.done(), "a copy completes an event that was begun");
}

void SimulatedDevice::require_work_memory(const std::byte* work, uint64_t bytes) const {
  const bool inside = std::any_of(work_memory_.begin(), work_memory_.end(), [&](const PageMapping& piece) {
    const std::byte* const begin = piece.memory().data();
    return work >= begin && work <= begin + piece.memory().size() &&
           bytes <= static_cast<uint64_t>(begin + piece.memory().size() - work);
  });
  TERRACE_ASSERT(inside, std::to_string(bytes) + " bytes are not all work memory of the device");
}

void SimulatedDevice::copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes,
                                   const Event* after, Event& done, const CopyNote& note) {
  TERRACE_ASSERT(source != nullptr || bytes == 0, "a copy to the device needs a source");
  require_work_memory(work, bytes);
  require_begun(done);
  to_device_.enqueue({work, source, bytes, after, &done, nullptr, note});
}

void SimulatedDevice::copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes,
                                        const Event* after, Event& done, const CopyNote& note) {
  require_work_memory(work, bytes);
  require_begun(done);
  to_host_.enqueue({destination, work, bytes, after, &done, nullptr, note});
}

void SimulatedDevice::copy_work_now(std::byte* to, const std::byte* from, uint64_t bytes) {
  require_work_memory(to, bytes);
  require_work_memory(from, bytes);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void SimulatedDevice::fill_zero(DeviceSlot id, uint64_t bytes, const Event* after, Event& done) {
  Slot& slot = slot_at(id);
  std::byte* const destination = begin_copy(slot, 0, bytes, done);
  to_device_.enqueue({destination, nullptr, bytes, after, &done, &slot.copies_in_flight, {}});
}

void SimulatedDevice::zero_now(DeviceSlot id, uint64_t bytes) {
  Slot& slot = slot_at(id);
  slot.require_idle("fill");
  TERRACE_ASSERT(bytes <= slot.bytes, std::to_string(bytes) + " bytes are more than the slot has");
  std::memset(slot.memory().data(), 0, bytes);
}

void SimulatedDevice::poison(DeviceSlot id) {
  if (!options_.strict) return;
  Slot& slot = slot_at(id);
  slot.require_idle("poison");
  fill_with_poison(slot.memory());
}

const std::byte* SimulatedDevice::home(DeviceSlot slot) const {
  return slot_at(slot).home;
}

}  // namespace terrace
