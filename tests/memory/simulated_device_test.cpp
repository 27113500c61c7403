#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/simulated_device.h>

#include "os_memory.h"
#include "support/allocation_counter.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(uint64_t bytes, std::mt19937_64& random) {
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

void write_slot(Device& device, DeviceSlot slot, uint64_t offset, const Bytes& bytes) {
  Event done;
  done.begin();
  device.copy_to_device(slot, offset, bytes.data(), bytes.size(), nullptr, done);
  done.wait();
}

Bytes read_slot(Device& device, DeviceSlot slot, uint64_t offset, uint64_t bytes) {
  Bytes result(bytes);
  Event done;
  done.begin();
  device.copy_to_host(result.data(), slot, offset, bytes, nullptr, done);
  done.wait();
  return result;
}

std::exception_ptr failure(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

void touch(const std::byte* address) {
  (void)*static_cast<const volatile std::byte*>(address);
}

TEST(SimulatedDevice, CountsItsBudgetToTheByte) {
  const uint64_t page = page_bytes();
  SimulatedDevice device({.budget_bytes = 10 * page});
  EXPECT_EQ(device.create_slots(2 * page, 3, "chunks").size(), 3u);
  EXPECT_EQ(device.used_bytes(), 6 * page);
  const std::span<std::byte> work = device.allocate_work_memory(page + 1);  // whole pages are taken
  EXPECT_EQ(work.size(), page + 1);
  EXPECT_EQ(device.used_bytes(), 8 * page);
  device.reserve_addresses(uint64_t{1} << 40);  // addresses cost nothing
  EXPECT_TRUE(device.create_slots(page, 0, "nothing").empty());
  EXPECT_TRUE(device.allocate_work_memory(0).empty());
  EXPECT_EQ(device.used_bytes(), 8 * page);
  try {
    device.create_slots(page, 3, "more chunks");
    FAIL() << "the budget was exceeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_EQ(error.parts().subject, "more chunks");
    EXPECT_NE(error.parts().reason.find(std::to_string(3 * page) + " bytes"), std::string::npos)
        << error.what();
    EXPECT_NE(error.parts().reason.find(std::to_string(10 * page) + " bytes"), std::string::npos)
        << error.what();
    EXPECT_NE(error.parts().reason.find(std::to_string(2 * page) + " are free"), std::string::npos)
        << error.what();
    EXPECT_FALSE(error.parts().advice.empty());
  }
  EXPECT_THROW(device.allocate_work_memory(2 * page + 1), Error);
  EXPECT_EQ(device.used_bytes(), 8 * page);  // a refusal takes nothing
  device.create_slots(page, 2, "the rest");
  EXPECT_EQ(device.used_bytes(), device.budget_bytes());
  EXPECT_EQ(device.peak_bytes(), device.budget_bytes());
  EXPECT_THROW(device.allocate_work_memory(1), Error);
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

TEST(SimulatedDevice, AlignsLargeMemoryToHugePages) {
  SimulatedDevice device({.budget_bytes = 16 * kMiB});
  const auto aligned = [](const std::byte* address, uint64_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
  };
  EXPECT_TRUE(aligned(device.reserve_addresses(1), kHugePageBytes));
  EXPECT_TRUE(aligned(device.allocate_work_memory(3 * kMiB).data(), kHugePageBytes));
  EXPECT_TRUE(aligned(device.allocate_work_memory(100).data(), page_bytes()));
  EXPECT_TRUE(aligned(device.home(device.create_slots(2 * kMiB, 1, "chunks")[0]), kHugePageBytes));
}

TEST(SimulatedDevice, MovesASlotUnderItsAddressAndBack) {
  const uint64_t bytes = 2 * page_bytes();
  SimulatedDevice device({.budget_bytes = bytes});
  const DeviceSlot slot = device.create_slots(bytes, 1, "chunks")[0];
  std::byte* const flat = device.reserve_addresses(4 * bytes) + bytes;
  std::mt19937_64 random(1);
  const Bytes content = random_bytes(bytes, random);
  write_slot(device, slot, 0, content);
  EXPECT_FALSE(is_readable(flat));
  device.attach(slot, flat);
  EXPECT_TRUE(device.attached(slot));
  EXPECT_TRUE(std::equal(content.begin(), content.end(), flat));
  EXPECT_FALSE(is_readable(device.home(slot)));
  EXPECT_FALSE(is_readable(flat + bytes));
  flat[5] = std::byte{200};
  device.detach(slot);
  EXPECT_FALSE(device.attached(slot));
  EXPECT_FALSE(is_readable(flat));
  EXPECT_EQ(read_slot(device, slot, 5, 1)[0], std::byte{200});
}

// Fifty lines that know nothing of pages: what every slot holds, and where it is.
struct NaiveSlot {
  Bytes content;
  std::byte* address = nullptr;
};

void run_against_model(uint64_t seed, uint64_t slot_bytes, uint32_t slot_count, int operations) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", slots of " + std::to_string(slot_bytes));
  std::mt19937_64 random(seed);
  SimulatedDevice device({.budget_bytes = slot_bytes * slot_count});
  const std::vector<DeviceSlot> slots = device.create_slots(slot_bytes, slot_count, "chunks");
  const uint64_t places = slot_count + 3;
  std::byte* const ranges[] = {device.reserve_addresses(places * slot_bytes),
                               device.reserve_addresses(places * slot_bytes)};
  std::vector<NaiveSlot> model(slot_count, NaiveSlot{Bytes(slot_bytes), nullptr});
  uint64_t h2d = 0, d2h = 0;
  for (int i = 0; i < operations; ++i) {
    const auto s = static_cast<uint32_t>(random() % slot_count);
    NaiveSlot& expected = model[s];
    const uint64_t offset = random() % slot_bytes;
    const uint64_t bytes =
        random() % std::min<uint64_t>(slot_bytes - offset, 5000) + (random() % 8 == 0 ? 0 : 1);
    if (expected.address != nullptr) {
      ASSERT_TRUE(std::equal(expected.content.begin(), expected.content.end(), expected.address));
      const Bytes fresh = random_bytes(bytes, random);
      std::copy(fresh.begin(), fresh.end(), expected.address + offset);
      std::copy(fresh.begin(), fresh.end(), expected.content.begin() + static_cast<ptrdiff_t>(offset));
      if (random() % 2 == 0) {
        device.detach(slots[s]);
        ASSERT_FALSE(is_readable(expected.address + offset));
        expected.address = nullptr;
      }
      continue;
    }
    switch (random() % 4) {
      case 0: {
        std::byte* const address = ranges[random() % 2] + random() % places * slot_bytes;
        const bool taken =
            std::any_of(model.begin(), model.end(), [&](const NaiveSlot& o) { return o.address == address; });
        if (taken) break;
        device.attach(slots[s], address);
        ASSERT_FALSE(is_readable(device.home(slots[s]) + offset));
        expected.address = address;
        break;
      }
      case 1: {
        const Bytes fresh = random_bytes(bytes, random);
        write_slot(device, slots[s], offset, fresh);
        std::copy(fresh.begin(), fresh.end(), expected.content.begin() + static_cast<ptrdiff_t>(offset));
        h2d += bytes;
        break;
      }
      case 2:
        ASSERT_EQ(read_slot(device, slots[s], 0, slot_bytes), expected.content);
        d2h += slot_bytes;
        break;
      case 3: {
        Event done;
        done.begin();
        device.fill_zero(slots[s], bytes, nullptr, done);
        done.wait();
        std::fill_n(expected.content.begin(), bytes, std::byte{0});
        break;
      }
    }
    ASSERT_EQ(device.h2d_bytes(), h2d);
    ASSERT_EQ(device.d2h_bytes(), d2h);
  }
}

TEST(SimulatedDevice, DoesWhatANaiveModelDoes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) run_against_model(seed, page_bytes() * (1 + seed % 3), 7, 600);
  run_against_model(7, kHugePageBytes, 3, 60);
}

TEST(SimulatedDevice, KeepsEverythingWhileOtherThreadsMapMemory) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop.load()) {
      const PageMapping mapping = PageMapping::populated(2 * page_bytes(), false, "another thread");
      std::fill(mapping.memory().begin(), mapping.memory().end(), std::byte{0xee});
    }
  });
  run_against_model(11, 2 * page_bytes(), 5, 1500);
  stop = true;
  other.join();
}

TEST(SimulatedDevice, CopiesInOrderBothWaysAndAfterTheEventGiven) {
  SimulatedDevice device({.budget_bytes = page_bytes()});
  const DeviceSlot slot = device.create_slots(page_bytes(), 1, "chunks")[0];
  const Bytes ones(page_bytes(), std::byte{1}), twos(page_bytes(), std::byte{2});
  Bytes back(page_bytes());
  Event gate, first, second, third;
  for (Event* event : {&gate, &first, &second, &third}) event->begin();
  device.copy_to_device(slot, 0, ones.data(), ones.size(), &gate, first);
  device.copy_to_device(slot, 1, twos.data(), twos.size() - 1, nullptr, second);
  device.copy_to_host(back.data(), slot, 0, back.size(), &second, third);
  EXPECT_FALSE(second.done());  // in order behind the first, which waits
  gate.complete_one();
  third.wait();
  EXPECT_EQ(back[0], std::byte{1});
  EXPECT_EQ(back[1], std::byte{2});
  EXPECT_EQ(back.back(), std::byte{2});
}

TEST(SimulatedDevice, PassesAFailureOnWithoutCopying) {
  SimulatedDevice device({.budget_bytes = page_bytes()});
  const DeviceSlot slot = device.create_slots(page_bytes(), 1, "chunks")[0];
  const Bytes ones(page_bytes(), std::byte{1});
  Event read, arrived;
  read.begin();
  arrived.begin();
  device.copy_to_device(slot, 0, ones.data(), ones.size(), &read, arrived);
  read.complete_one(failure("the read failed"));
  EXPECT_THROW(arrived.wait(), std::runtime_error);
  EXPECT_EQ(device.h2d_bytes(), 0u);
  EXPECT_EQ(read_slot(device, slot, 0, 1)[0], std::byte{0});
  device.attach(slot, device.reserve_addresses(page_bytes()));  // nothing is in flight any more
}

TEST(SimulatedDevice, ZerosASlotAttachedOrNot) {
  SimulatedDevice device({.budget_bytes = page_bytes()});
  const DeviceSlot slot = device.create_slots(page_bytes(), 1, "chunks")[0];
  std::byte* const flat = device.reserve_addresses(page_bytes());
  write_slot(device, slot, 0, Bytes(page_bytes(), std::byte{5}));
  device.zero_now(slot, 100);
  device.attach(slot, flat);
  EXPECT_EQ(flat[99], std::byte{0});
  EXPECT_EQ(flat[100], std::byte{5});
  device.zero_now(slot, page_bytes());
  EXPECT_EQ(flat[page_bytes() - 1], std::byte{0});
  EXPECT_EQ(device.h2d_bytes(), page_bytes());
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

TEST(SimulatedDevice, PoisonsWhatIsFreshOrFreedInStrictModeOnly) {
  const auto is_poison = [](const Bytes& bytes) {
    for (size_t i = 0; i < bytes.size(); i += 4) {
      uint32_t word;
      std::memcpy(&word, bytes.data() + i, 4);
      const bool signalling_fp32 = std::isnan(std::bit_cast<float>(word)) && (word & 0x00400000u) == 0;
      const bool signalling_bf16 =
          std::isnan(to_float(Bf16{static_cast<uint16_t>(word)})) && (word & 0x0040u) == 0;
      const bool nan_fp16 = (word & 0x7c00u) == 0x7c00u && (word & 0x03ffu) != 0;
      if (!signalling_fp32 || !signalling_bf16 || !nan_fp16) return false;
    }
    return true;
  };
  for (const bool strict : {true, false}) {
    SimulatedDevice device({.budget_bytes = 2 * page_bytes(), .strict = strict});
    EXPECT_EQ(device.strict(), strict);
    const DeviceSlot slot = device.create_slots(page_bytes(), 1, "chunks")[0];
    EXPECT_EQ(is_poison(read_slot(device, slot, 0, page_bytes())), strict);
    const std::span<std::byte> work = device.allocate_work_memory(page_bytes());
    EXPECT_EQ(is_poison(Bytes(work.begin(), work.end())), strict);
    write_slot(device, slot, 0, Bytes(page_bytes(), std::byte{1}));
    device.poison(slot);
    EXPECT_EQ(is_poison(read_slot(device, slot, 0, page_bytes())), strict);
  }
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

TEST_F(SimulatedDeviceDeathTest, RefusesToMoveASlotWithACopyInFlight) {
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = page});
        const DeviceSlot slot = device.create_slots(page, 1, "chunks")[0];
        const Bytes bytes(page);
        Event gate;
        Event done;
        gate.begin();
        done.begin();
        device.copy_to_device(slot, 0, bytes.data(), page, &gate, done);
        device.attach(slot, device.reserve_addresses(page));
      },
      "cannot attach a slot with 1 copies in flight");
}

TEST_F(SimulatedDeviceDeathTest, RefusesCopiesOfAttachedSlotsAndBeyondTheirEnd) {
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = page});
        const DeviceSlot slot = device.create_slots(page, 1, "chunks")[0];
        device.attach(slot, device.reserve_addresses(page));
        read_slot(device, slot, 0, 1);
      },
      "a copy acts on a detached slot");
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = page});
        read_slot(device, device.create_slots(page, 1, "chunks")[0], page - 1, 2);
      },
      "are not in a slot of");
}

TEST_F(SimulatedDeviceDeathTest, RefusesAddressesThatAreTakenOrNotReserved) {
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = 4 * page});
        const std::vector<DeviceSlot> slots = device.create_slots(2 * page, 2, "chunks");
        std::byte* const flat = device.reserve_addresses(8 * page);
        device.attach(slots[0], flat + 2 * page);
        device.attach(slots[1], flat + 3 * page);
      },
      "another slot is attached at these addresses");
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = 4 * page});
        const std::vector<DeviceSlot> slots = device.create_slots(2 * page, 2, "chunks");
        std::byte* const flat = device.reserve_addresses(8 * page);
        device.attach(slots[0], flat + 2 * page);
        device.attach(slots[1], flat + page);
      },
      "another slot is attached at these addresses");
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = 2 * page});
        const DeviceSlot slot = device.create_slots(2 * page, 1, "chunks")[0];
        device.attach(slot, device.reserve_addresses(2 * page) + page);
      },
      "does not fit the reserved addresses");
}

TEST_F(SimulatedDeviceDeathTest, RefusesToAttachOrDetachTwice) {
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = page});
        const DeviceSlot slot = device.create_slots(page, 1, "chunks")[0];
        std::byte* const flat = device.reserve_addresses(2 * page);
        device.attach(slot, flat);
        device.attach(slot, flat + page);
      },
      "is attached already");
  EXPECT_DEATH(
      {
        SimulatedDevice device({.budget_bytes = page});
        device.detach(device.create_slots(page, 1, "chunks")[0]);
      },
      "is not attached");
}

}  // namespace
}  // namespace terrace
