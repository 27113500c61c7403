#include <terrace/memory/device/simulated_device.h>

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include <terrace/base/units.h>

#include "device_suite.h"
#include "memory/host/os_memory.h"
#include "support/allocation_counter.h"

namespace terrace::simulated_device_test {
namespace {

using testing::Bytes;

class SimulatedRig final : public testing::DeviceRig {
 public:
  uint64_t granularity_bytes() const override { return page_bytes(); }
  std::unique_ptr<Device> make(uint64_t budget_bytes, bool strict) override {
    return std::make_unique<SimulatedDevice>(
        SimulatedDeviceOptions{.budget_bytes = budget_bytes, .strict = strict});
  }
  Bytes peek(const std::byte* address, uint64_t bytes) override { return {address, address + bytes}; }
  void poke(std::byte* address, const Bytes& bytes) override {
    std::copy(bytes.begin(), bytes.end(), address);
  }
  bool is_mapped(const std::byte* address) override { return is_readable(address); }
  bool unmaps_at_once() const override { return true; }
};

const testing::DeviceKind kSimulated{"OfThisMachine",
                                     [](std::string&) { return std::make_unique<SimulatedRig>(); }};
using testing::DeviceSuite;
using testing::DeviceSuiteDeathTest;
INSTANTIATE_TEST_SUITE_P(Simulated, DeviceSuite, ::testing::Values(kSimulated), testing::kind_name);
INSTANTIATE_TEST_SUITE_P(Simulated, DeviceSuiteDeathTest, ::testing::Values(kSimulated), testing::kind_name);

void touch(const std::byte* address) {
  (void)*static_cast<const volatile std::byte*>(address);
}

TEST(SimulatedDevice, HasItsMemoryFromTheStartAndNoMore) {
  SimulatedDevice device({.budget_bytes = 8 * kMiB});
  const std::vector<DeviceSlot> slots = device.create_slots(2 * kMiB, 3, "chunks");
  const std::span<std::byte> work = device.allocate_work_memory(2 * kMiB);
  EXPECT_EQ(resident_bytes({device.home(slots[0]), 6 * kMiB}), 6 * kMiB);
  EXPECT_EQ(resident_bytes(work), 2 * kMiB);
  std::byte* const flat = device.reserve_addresses(64 * kMiB);
  device.attach(slots[1], flat + 4 * kMiB);
  EXPECT_EQ(resident_bytes({device.home(slots[0]), 6 * kMiB}) + resident_bytes({flat, 64 * kMiB}), 6 * kMiB);
}

TEST(SimulatedDevice, TakesTheHomeOfASlotAwayWhileItIsAttached) {
  SimulatedDevice device({.budget_bytes = page_bytes()});
  const DeviceSlot slot = device.create_slots(page_bytes(), 1, "chunks")[0];
  device.attach(slot, device.reserve_addresses(page_bytes()));
  EXPECT_FALSE(is_readable(device.home(slot)));
  device.detach(slot);
  EXPECT_TRUE(is_readable(device.home(slot)));
}

TEST(SimulatedDevice, KeepsEverythingWhileOtherThreadsMapMemory) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop.load()) {
      const PageMapping mapping = PageMapping::populated(2 * page_bytes(), false, "another thread");
      std::fill(mapping.memory().begin(), mapping.memory().end(), std::byte{0xee});
    }
  });
  SimulatedRig rig;
  testing::run_against_model(rig, false, 11, 2 * page_bytes(), 5, 1500);
  stop = true;
  other.join();
}

TEST(SimulatedDevice, AllocatesNothingOnceItsSlotsAreThere) {
  SimulatedDevice device({.budget_bytes = 4 * page_bytes()});
  const std::vector<DeviceSlot> slots = device.create_slots(page_bytes(), 4, "chunks");
  std::byte* const flat = device.reserve_addresses(4 * page_bytes());
  const Bytes bytes(page_bytes(), std::byte{1});
  Bytes back(page_bytes());
  Event arrived;
  Event done;
  const uint64_t before = testing::allocations_of_this_thread();
  for (int round = 0; round < 5; ++round) {
    for (uint64_t s = 0; s < slots.size(); ++s) {
      arrived.begin();
      done.begin();
      device.copy_to_device(slots[s], 0, bytes.data(), bytes.size(), nullptr, arrived);
      device.copy_to_host(back.data(), slots[s], 0, back.size(), &arrived, done);
      done.wait();
      device.attach(slots[s], flat + (3 - s) * page_bytes());
    }
    for (const DeviceSlot slot : slots) device.detach(slot);
  }
  EXPECT_EQ(testing::allocations_of_this_thread(), before);
}

class SimulatedDeviceDeathTest : public ::testing::Test {
 protected:
  // Every device has threads, and each death starts in a fresh process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  const uint64_t page = page_bytes();
};

TEST_F(SimulatedDeviceDeathTest, NamesASlotWhoseHomeIsTouchedWhileItIsAttached) {
  EXPECT_EXIT(
      {
        SimulatedDevice device({.budget_bytes = 3 * page, .strict = true});
        const std::vector<DeviceSlot> slots = device.create_slots(page, 3, "parameters");
        device.attach(slots[2], device.reserve_addresses(page));
        touch(device.home(slots[2]) + 9);
      },
      ::testing::KilledBySignal(SIGSEGV),
      "home of slot 2 of the device's parameters, whose memory is attached at 0x");
}

}  // namespace
}  // namespace terrace::simulated_device_test
