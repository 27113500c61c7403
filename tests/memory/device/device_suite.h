// What every Device promises, written once (device_suite.cpp) and run for each back end through a DeviceRig.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <terrace/memory/device/device.h>

namespace terrace::testing {

using Bytes = std::vector<std::byte>;

// Makes devices of one kind and touches their memory as operations would.
class DeviceRig {
 public:
  virtual ~DeviceRig() = default;
  virtual uint64_t granularity_bytes() const = 0;
  virtual std::unique_ptr<Device> make(uint64_t budget_bytes, bool strict = false) = 0;
  virtual Bytes peek(const std::byte* address, uint64_t bytes) = 0;
  virtual void poke(std::byte* address, const Bytes& bytes) = 0;
  virtual bool is_mapped(const std::byte* address) = 0;
  // Without strict mode: whether addresses fault as soon as their slot is detached.
  virtual bool unmaps_at_once() const = 0;
};

struct DeviceKind {
  std::string name;
  // Null with a reason where there is no such device.
  std::function<std::unique_ptr<DeviceRig>(std::string& reason)> make_rig;
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) {
  *out << kind.name;
}

class DeviceSuite : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    std::string reason;
    rig_ = GetParam().make_rig(reason);
    if (rig_ == nullptr) GTEST_SKIP() << reason;
    page = rig_->granularity_bytes();
  }
  DeviceRig& rig() { return *rig_; }

  uint64_t page = 0;

 private:
  std::unique_ptr<DeviceRig> rig_;
};

// Every device has threads, and each death starts in a fresh process.
class DeviceSuiteDeathTest : public DeviceSuite {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    DeviceSuite::SetUp();
  }
};

inline std::string kind_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

void write_slot(Device& device, DeviceSlot slot, uint64_t offset, const Bytes& bytes);
Bytes read_slot(Device& device, DeviceSlot slot, uint64_t offset, uint64_t bytes);
bool is_poison(const Bytes& bytes);
std::exception_ptr failure(const char* text);
// Seeded random operations against a naive model.
void run_against_model(DeviceRig& rig, bool strict, uint64_t seed, uint64_t slot_bytes, uint32_t slot_count,
                       int operations);

}  // namespace terrace::testing
