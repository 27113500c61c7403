#include <terrace/memory/device/simulated_device.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/slot_table.h>

namespace terrace {
namespace {

void fill_with_poison(std::span<std::byte> memory) {
  auto* const words = reinterpret_cast<uint32_t*>(memory.data());
  std::fill_n(words, memory.size() / sizeof(uint32_t), kPoison);
}

}  // namespace

// A pool holds the homes of the slots of one create_slots() in one mapping.
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
  std::vector<const SlotEntry*> slots;
  std::optional<StrictGuard> guard;
};

SimulatedDevice::SimulatedDevice(SimulatedDeviceOptions options)
    : options_(options),
      table_(std::make_unique<SlotTable>(options.budget_bytes, page_bytes())),
      move_method_(probe_move_method()),
      to_device_({.link_bytes_per_second = options.h2d_bytes_per_second,
                  .caller_makes_small_copies = options.caller_makes_small_copies}),
      to_host_({.link_bytes_per_second = options.d2h_bytes_per_second,
                .caller_makes_small_copies = options.caller_makes_small_copies}) {}

SimulatedDevice::~SimulatedDevice() = default;

uint64_t SimulatedDevice::used_bytes() const {
  return table_->used_bytes();
}

std::byte* SimulatedDevice::reserve_addresses(uint64_t bytes) {
  reserved_.push_back(PageMapping::inaccessible(round_up(std::max<uint64_t>(bytes, 1), page_bytes())));
  table_->add_addresses(reserved_.back().memory());
  return reserved_.back().memory().data();
}

std::vector<DeviceSlot> SimulatedDevice::create_slots(uint64_t slot_bytes, uint32_t count,
                                                      std::string_view purpose) {
  const uint64_t bytes = table_->total_bytes(slot_bytes, count);
  if (count == 0) return {};
  table_->charge(bytes, purpose);
  try {
    pools_.push_back(std::make_unique<Pool>(slot_bytes, count, purpose));
  } catch (...) {
    table_->refund(bytes);
    throw;
  }
  Pool& pool = *pools_.back();
  if (options_.strict) fill_with_poison(pool.homes.memory());

  std::vector<DeviceSlot> result;
  for (uint32_t s = 0; s < count; ++s) {
    result.push_back(table_->add_slot(pool.homes.memory().data() + s * slot_bytes, slot_bytes));
    pool.slots.push_back(&table_->at(result.back()));
  }
  if (options_.strict) pool.guard.emplace(pool.homes.memory(), pool);
  return result;
}

uint64_t SimulatedDevice::slot_bytes(DeviceSlot slot) const {
  return table_->at(slot).bytes;
}

std::span<std::byte> SimulatedDevice::allocate_work_memory(uint64_t bytes) {
  if (bytes == 0) return {};
  const uint64_t mapped_bytes = round_up(bytes, page_bytes());
  table_->charge(mapped_bytes, "work memory");
  try {
    work_memory_.push_back(
        PageMapping::populated(mapped_bytes, mapped_bytes >= kHugePageBytes, "work memory"));
  } catch (...) {
    table_->refund(mapped_bytes);
    throw;
  }
  const std::span<std::byte> memory = work_memory_.back().memory();
  table_->add_work_memory(memory);
  if (options_.strict) fill_with_poison(memory);
  return memory.first(bytes);
}

void SimulatedDevice::attach(DeviceSlot id, std::byte* address) {
  table_->require_attachable(id, address);
  const SlotEntry& slot = table_->at(id);
  move_pages(slot.home, address, slot.bytes, move_method_);
  table_->note_attached(id, address);
}

void SimulatedDevice::detach(DeviceSlot id) {
  table_->require_attached(id);
  const SlotEntry& slot = table_->at(id);
  move_pages(slot.memory().data(), slot.home, slot.bytes, move_method_);
  table_->note_detached(id);
}

bool SimulatedDevice::attached(DeviceSlot slot) const {
  return table_->at(slot).is_attached();
}

void SimulatedDevice::copy_to_device(DeviceSlot id, uint64_t offset, const std::byte* source, uint64_t bytes,
                                     const Event* after, Event& done, const CopyNote& note) {
  to_device_.enqueue(table_->to_slot(id, offset, source, bytes, after, done, note));
}

void SimulatedDevice::copy_to_host(std::byte* destination, DeviceSlot id, uint64_t offset, uint64_t bytes,
                                   const Event* after, Event& done, const CopyNote& note) {
  to_host_.enqueue(table_->from_slot(destination, id, offset, bytes, after, done, note));
}

void SimulatedDevice::copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes,
                                   const Event* after, Event& done, const CopyNote& note) {
  to_device_.enqueue(table_->to_work(work, source, bytes, after, done, note));
}

void SimulatedDevice::copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes,
                                        const Event* after, Event& done, const CopyNote& note) {
  to_host_.enqueue(table_->from_work(destination, work, bytes, after, done, note));
}

void SimulatedDevice::copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes,
                                      const Event* after, Event& done, const CopyNote& note) {
  to_device_.enqueue(SlotTable::without_slot(program, source, bytes, after, done, note));
}

void SimulatedDevice::copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                                           const Event* after, Event& done, const CopyNote& note) {
  to_host_.enqueue(SlotTable::without_slot(destination, program, bytes, after, done, note));
}

CopyStream& SimulatedDevice::within() {
  if (!within_)
    within_.emplace(CopyStreamOptions{.caller_makes_small_copies = options_.caller_makes_small_copies});
  return *within_;
}

void SimulatedDevice::copy_work_to_slot(DeviceSlot id, uint64_t offset, const std::byte* work, uint64_t bytes,
                                        const Event* after, Event& done) {
  within().enqueue(table_->within(id, offset, work, bytes, after, done));
}

void SimulatedDevice::copy_slot_to_work(std::byte* work, DeviceSlot id, uint64_t offset, uint64_t bytes,
                                        const Event* after, Event& done) {
  within().enqueue(table_->out_within(work, id, offset, bytes, after, done));
}

void SimulatedDevice::copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) {
  table_->require_work_memory(to, bytes);
  table_->require_work_memory(from, bytes);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void SimulatedDevice::zero_in_order(DeviceSlot id, uint64_t offset, uint64_t bytes) {
  std::memset(table_->idle_memory(id, offset, bytes, "fill").data(), 0, bytes);
}

void SimulatedDevice::fill_in_order(DeviceSlot id, uint64_t offset, const std::byte* source, uint64_t bytes) {
  const std::span<std::byte> memory = table_->idle_memory(id, offset, bytes, "fill");
  if (bytes > 0) std::memcpy(memory.data(), source, bytes);
}

// Operations are over when they return, so there is nothing to wait for but `after`, and nobody asks for it.
std::byte* SimulatedDevice::begin_fills(DeviceSlot id, uint32_t part_count, const Event* after) {
  TERRACE_ASSERT(after == nullptr, "only file readers wait behind an event, and this device has none");
  return table_->begin_fills(id, part_count);
}

void SimulatedDevice::end_fill(DeviceSlot id) noexcept {
  table_->end_fill(id);
}

void SimulatedDevice::poison(DeviceSlot id) {
  if (options_.strict) fill_with_poison(table_->idle_memory(id, 0, slot_bytes(id), "poison"));
}

const std::byte* SimulatedDevice::home(DeviceSlot slot) const {
  return table_->at(slot).home;
}

}  // namespace terrace
