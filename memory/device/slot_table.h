// SlotTable: the books of every Device about its slots: the budget, the address of each attached slot, and
// the copies in flight. It checks the rules of Device and knows addresses only: it must never touch memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/event.h>
#include <terrace/memory/device/copy_stream.h>
#include <terrace/memory/device/device.h>

namespace terrace {

// kPoison is a signalling NaN as fp32, two signalling NaNs as bf16 and two (quiet) NaNs as fp16: every bit
// pattern that is a signalling NaN in bf16 has fp16's quiet bit set.
inline constexpr uint32_t kPoison = 0x7fa07fa0u;

struct SlotEntry {
  SlotEntry(std::byte* home_, uint64_t bytes_) : home(home_), bytes(bytes_) {}

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
  void require_idle(const char* intention) const;
  void require_has(uint64_t offset, uint64_t count) const;
};

class SlotTable {
 public:
  SlotTable(uint64_t budget_bytes, uint64_t granularity_bytes);

  uint64_t budget_bytes() const { return budget_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t granularity_bytes() const { return granularity_bytes_; }

  // Takes `bytes` of the budget or throws Error(capacity); the only place that compares with it.
  void charge(uint64_t bytes, std::string_view purpose);
  // Gives back the charge for something that could not be made.
  void refund(uint64_t bytes) { used_bytes_ -= bytes; }
  // The bytes of `count` slots, which must be whole and countable.
  uint64_t total_bytes(uint64_t slot_bytes, uint32_t count) const;

  void add_addresses(std::span<std::byte> reserved) { reserved_.push_back(reserved); }
  void add_work_memory(std::span<std::byte> memory) { work_memory_.push_back(memory); }
  // Adds a slot; attaching it later allocates nothing.
  DeviceSlot add_slot(std::byte* home, uint64_t bytes);
  SlotEntry& at(DeviceSlot slot) const;

  // Assert that the slot may be attached at `address`, and that it is attached.
  void require_attachable(DeviceSlot slot, const std::byte* address) const;
  void require_attached(DeviceSlot slot) const;
  // Note that the slot was attached or detached.
  void note_attached(DeviceSlot slot, std::byte* address);
  void note_detached(DeviceSlot slot);

  // Make the tasks of Device's copies and check them; copies of slots are counted as in flight.
  CopyTask to_slot(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                   const Event* after, Event& done, const CopyNote& note) const;
  CopyTask from_slot(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                     const Event* after, Event& done, const CopyNote& note) const;
  CopyTask to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after, Event& done,
                   const CopyNote& note) const;
  CopyTask within(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes, const Event* after,
                  Event& done) const;
  CopyTask out_within(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes, const Event* after,
                      Event& done) const;
  CopyTask from_work(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                     Event& done, const CopyNote& note) const;

  // Makes the task of a copy between two places that are in no slot, as memory of the program is.
  static CopyTask without_slot(std::byte* destination, const std::byte* source, uint64_t bytes,
                               const Event* after, Event& done, const CopyNote& note);

  // Checks that a slot may be filled; the parts count as copies in flight until end_fill().
  std::byte* begin_fills(DeviceSlot slot, uint32_t part_count) const;
  void end_fill(DeviceSlot slot) const noexcept;

  // Bytes of the slot, which must be idle, for filling them in the order of the operations.
  std::span<std::byte> idle_memory(DeviceSlot slot, uint64_t offset, uint64_t bytes,
                                   const char* intention) const;
  void require_work_memory(const std::byte* work, uint64_t bytes) const;

 private:
  // Checks a copy and counts it as in flight; returns where its bytes begin.
  std::byte* begin_copy(DeviceSlot slot, uint64_t offset, uint64_t bytes, const Event& done) const;
  static void require_begun(const Event& done);
  // The first slot that is attached at `address` or behind it.
  std::vector<SlotEntry*>::const_iterator place_of(const std::byte* address) const;

  const uint64_t budget_bytes_;
  const uint64_t granularity_bytes_;
  uint64_t used_bytes_ = 0;
  std::vector<std::span<std::byte>> reserved_;  // flat addresses
  std::vector<std::span<std::byte>> work_memory_;
  std::vector<std::unique_ptr<SlotEntry>> slots_;  // by DeviceSlot
  std::vector<SlotEntry*> attached_;               // by address
};

}  // namespace terrace
