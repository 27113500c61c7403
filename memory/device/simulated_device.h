// SimulatedDevice: an accelerator's memory played by anonymous memory of this machine. It is separate memory:
// every byte in it arrives by a counted copy, and host code must never touch it outside of an operation.
//
// Slots move by mremap: the pages go from the home of the slot to the flat address and back, and the
// addresses they leave become inaccessible at once, without a moment in which another thread's mmap could
// land there. Slots whose size is a multiple of 2 MiB live in huge pages, so that a move takes microseconds.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <terrace/memory/device/copy_stream.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/device/strict_guard.h>
#include <terrace/memory/host/pages.h>

namespace terrace {

class SlotTable;

struct SimulatedDeviceOptions {
  uint64_t budget_bytes = 0;
  // Fresh and poisoned slots hold NaN, and a touch of the home of an attached slot ends the program with its
  // name.
  bool strict = false;
  // The rates of the simulated link; 0: as fast as memory.
  uint64_t h2d_bytes_per_second = 0;
  uint64_t d2h_bytes_per_second = 0;
  // False: every copy is made by a thread of the link, as with a GPU.
  bool caller_makes_small_copies = true;
};

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(SimulatedDeviceOptions options);
  // Finishes the copies that were asked for; the events they wait for must still come.
  ~SimulatedDevice() override;

  uint64_t budget_bytes() const override { return options_.budget_bytes; }
  uint64_t used_bytes() const override;
  uint64_t peak_bytes() const override { return used_bytes(); }  // nothing is ever given back
  uint64_t granularity_bytes() const override { return page_bytes(); }
  std::byte* reserve_addresses(uint64_t bytes) override;
  std::vector<DeviceSlot> create_slots(uint64_t slot_bytes, uint32_t count,
                                       std::string_view purpose) override;
  uint64_t slot_bytes(DeviceSlot slot) const override;
  std::span<std::byte> allocate_work_memory(uint64_t bytes) override;
  void attach(DeviceSlot slot, std::byte* address) override;
  void detach(DeviceSlot slot) override;
  bool attached(DeviceSlot slot) const override;
  void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                      const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                    const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after, Event& done,
                    const CopyNote& note = {}) override;
  void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                         Event& done, const CopyNote& note = {}) override;
  void copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes, const Event* after,
                       Event& done, const CopyNote& note = {}) override;
  void copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_work_to_slot(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) override;
  void zero_in_order(DeviceSlot slot, uint64_t offset, uint64_t bytes) override;
  void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) override;
  uint64_t h2d_bytes() const override { return to_device_.copied_bytes(); }
  uint64_t d2h_bytes() const override { return to_host_.copied_bytes(); }
  uint64_t h2d_busy_ns() const override { return to_device_.busy_ns(); }
  uint64_t d2h_busy_ns() const override { return to_host_.busy_ns(); }
  bool strict() const override { return options_.strict; }
  std::byte* begin_fills(DeviceSlot slot, uint32_t part_count, const Event* after) override;
  void end_fill(DeviceSlot slot) noexcept override;
  void poison(DeviceSlot slot) override;
  const std::byte* home(DeviceSlot slot) const override;

 private:
  struct Pool;
  CopyStream& within();

  const SimulatedDeviceOptions options_;
  const std::unique_ptr<SlotTable> table_;
  const MoveMethod move_method_;
  std::vector<PageMapping> reserved_;  // flat addresses
  std::vector<PageMapping> work_memory_;
  std::vector<std::unique_ptr<Pool>> pools_;
  CopyStream to_device_;  // last: they finish before anything else goes
  CopyStream to_host_;
  std::optional<CopyStream> within_;  // made with its first copy: most runs have none
};

}  // namespace terrace
