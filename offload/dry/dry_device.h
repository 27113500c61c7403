// DryDevice: the device of a dry run. It grants addresses and slots within its budget and counts copies as
// any device does, but has no memory: any access to its addresses faults. It must never read or write a byte,
// and tells no observer of a copy.
//
// A copy is over when the call returns: the call waits for `after`. So the thread that requests a copy must
// not be the one that completes its `after`, as with any device.
#pragma once

#include <atomic>
#include <string_view>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/host/pages.h>
#include <terrace/offload/dry/step_record.h>

namespace terrace {

class DryDevice final : public Device {
 public:
  // `record`, which may be null, outlives the device.
  explicit DryDevice(uint64_t budget_bytes, StepRecord* record = nullptr)
      : budget_bytes_(budget_bytes), record_(record) {}

  uint64_t budget_bytes() const override { return budget_bytes_; }
  uint64_t used_bytes() const override { return used_bytes_; }
  uint64_t peak_bytes() const override { return used_bytes_; }
  uint64_t granularity_bytes() const override { return page_bytes(); }
  std::byte* reserve_addresses(uint64_t bytes) override;
  std::vector<DeviceSlot> create_slots(uint64_t slot_bytes, uint32_t count,
                                       std::string_view purpose) override;
  uint64_t slot_bytes(DeviceSlot slot) const override { return slots_[index_of(slot)].bytes; }
  std::span<std::byte> allocate_work_memory(uint64_t bytes) override;
  void attach(DeviceSlot slot, std::byte* address) override;
  void detach(DeviceSlot slot) override;
  bool attached(DeviceSlot slot) const override { return slots_[index_of(slot)].attached; }
  void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                      const Event* after, Event& done, const CopyNote& note) override;
  void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                    const Event* after, Event& done, const CopyNote& note) override;
  void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after, Event& done,
                    const CopyNote& note) override;
  void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                         Event& done, const CopyNote& note) override;
  void copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes, const Event* after,
                       Event& done, const CopyNote& note) override;
  void copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note) override;
  void copy_work_to_slot(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_work_in_order(std::byte*, const std::byte*, uint64_t) override {}
  void zero_in_order(DeviceSlot slot, uint64_t offset, uint64_t bytes) override;
  void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) override;
  // File reads go to a DryEngine, whose requests move nothing.
  std::byte* begin_fills(DeviceSlot slot, uint32_t request_count, const Event* after) override;
  void end_fill(DeviceSlot) noexcept override {}
  const std::byte* home(DeviceSlot slot) const override;
  uint64_t h2d_bytes() const override { return h2d_bytes_.load(std::memory_order_relaxed); }
  uint64_t d2h_bytes() const override { return d2h_bytes_.load(std::memory_order_relaxed); }
  uint64_t h2d_busy_ns() const override { return 0; }
  uint64_t d2h_busy_ns() const override { return 0; }
  bool strict() const override { return false; }
  void poison(DeviceSlot) override {}

 private:
  struct Slot {
    uint64_t bytes = 0;
    bool attached = false;
  };
  void charge(uint64_t bytes, std::string_view purpose);
  void copy(std::atomic<uint64_t>& counted, uint64_t bytes, const Event* after, Event& done);
  void note(RecordedEvent::Kind kind, DeviceSlot slot, uint64_t bytes);
  uint32_t place_of(const std::byte* address, uint64_t slot_bytes) const;
  void require_detached(DeviceSlot slot) const;

  const uint64_t budget_bytes_;
  StepRecord* const record_;
  uint64_t used_bytes_ = 0;
  std::vector<PageMapping> addresses_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> h2d_bytes_{0};
  std::atomic<uint64_t> d2h_bytes_{0};
};

}  // namespace terrace
