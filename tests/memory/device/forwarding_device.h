// ForwardingDevice hands every call on to another device. A test overrides what it wants to be otherwise.
#pragma once

#include <terrace/memory/device/device.h>

namespace terrace {

class ForwardingDevice : public Device {
 public:
  // `device` outlives this.
  explicit ForwardingDevice(Device& device) : device_(device) {}

  uint64_t budget_bytes() const override { return device_.budget_bytes(); }
  uint64_t used_bytes() const override { return device_.used_bytes(); }
  uint64_t peak_bytes() const override { return device_.peak_bytes(); }
  uint64_t granularity_bytes() const override { return device_.granularity_bytes(); }
  std::byte* reserve_addresses(uint64_t bytes) override { return device_.reserve_addresses(bytes); }
  std::vector<DeviceSlot> create_slots(uint64_t bytes, uint32_t count, std::string_view purpose) override {
    return device_.create_slots(bytes, count, purpose);
  }
  uint64_t slot_bytes(DeviceSlot slot) const override { return device_.slot_bytes(slot); }
  std::span<std::byte> allocate_work_memory(uint64_t bytes) override {
    return device_.allocate_work_memory(bytes);
  }
  void attach(DeviceSlot slot, std::byte* address) override { device_.attach(slot, address); }
  void detach(DeviceSlot slot) override { device_.detach(slot); }
  bool attached(DeviceSlot slot) const override { return device_.attached(slot); }
  void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                      const Event* after, Event& done, const CopyNote& note) override {
    device_.copy_to_device(slot, offset, source, bytes, after, done, note);
  }
  void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                    const Event* after, Event& done, const CopyNote& note) override {
    device_.copy_to_host(destination, slot, offset, bytes, after, done, note);
  }
  void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after, Event& done,
                    const CopyNote& note) override {
    device_.copy_to_work(work, source, bytes, after, done, note);
  }
  void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                         Event& done, const CopyNote& note) override {
    device_.copy_work_to_host(destination, work, bytes, after, done, note);
  }
  void copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes, const Event* after,
                       Event& done, const CopyNote& note) override {
    device_.copy_to_program(program, source, bytes, after, done, note);
  }
  void copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note) override {
    device_.copy_program_to_host(destination, program, bytes, after, done, note);
  }
  void copy_work_to_slot(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                         const Event* after, Event& done) override {
    device_.copy_work_to_slot(slot, offset, work, bytes, after, done);
  }
  void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                         const Event* after, Event& done) override {
    device_.copy_slot_to_work(work, slot, offset, bytes, after, done);
  }
  void copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) override {
    device_.copy_work_in_order(to, from, bytes);
  }
  void zero_in_order(DeviceSlot slot, uint64_t offset, uint64_t bytes) override {
    device_.zero_in_order(slot, offset, bytes);
  }
  void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) override {
    device_.fill_in_order(slot, offset, source, bytes);
  }
  uint64_t h2d_bytes() const override { return device_.h2d_bytes(); }
  uint64_t d2h_bytes() const override { return device_.d2h_bytes(); }
  uint64_t h2d_busy_ns() const override { return device_.h2d_busy_ns(); }
  uint64_t d2h_busy_ns() const override { return device_.d2h_busy_ns(); }
  bool strict() const override { return device_.strict(); }
  void poison(DeviceSlot slot) override { device_.poison(slot); }
  std::byte* begin_fills(DeviceSlot slot, uint32_t part_count, const Event* after) override {
    return device_.begin_fills(slot, part_count, after);
  }
  void end_fill(DeviceSlot slot) noexcept override { device_.end_fill(slot); }
  const std::byte* home(DeviceSlot slot) const override { return device_.home(slot); }

 private:
  Device& device_;
};

}  // namespace terrace
