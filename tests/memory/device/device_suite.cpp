#include "device_suite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include <terrace/base/data_type.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

#include "support/sanitized.h"

namespace terrace::testing {

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

bool is_poison(const Bytes& bytes) {
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
}

namespace {

Bytes random_bytes(uint64_t bytes, std::mt19937_64& random) {
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

}  // namespace

TEST_P(DeviceSuite, CountsItsBudgetToTheByte) {
  const auto device = rig().make(10 * page);
  EXPECT_EQ(device->create_slots(2 * page, 3, "chunks").size(), 3u);
  EXPECT_EQ(device->used_bytes(), 6 * page);
  const std::span<std::byte> work = device->allocate_work_memory(page + 1);  // whole pages are taken
  EXPECT_EQ(work.size(), page + 1);
  EXPECT_EQ(device->used_bytes(), 8 * page);
  device->reserve_addresses(64 * kGiB);  // addresses cost nothing
  EXPECT_TRUE(device->create_slots(page, 0, "nothing").empty());
  EXPECT_TRUE(device->allocate_work_memory(0).empty());
  EXPECT_EQ(device->used_bytes(), 8 * page);
  try {
    device->create_slots(page, 3, "more chunks");
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
  EXPECT_THROW(device->allocate_work_memory(2 * page + 1), Error);
  EXPECT_EQ(device->used_bytes(), 8 * page);  // a refusal takes nothing
  device->create_slots(page, 2, "the rest");
  EXPECT_EQ(device->used_bytes(), device->budget_bytes());
  EXPECT_EQ(device->peak_bytes(), device->budget_bytes());
  EXPECT_THROW(device->allocate_work_memory(1), Error);
}

TEST_P(DeviceSuite, MovesASlotUnderItsAddressAndBack) {
  const uint64_t bytes = 2 * page;
  const auto device = rig().make(bytes, true);  // strict: unmapped as soon as detached
  const DeviceSlot slot = device->create_slots(bytes, 1, "chunks")[0];
  std::byte* const flat = device->reserve_addresses(4 * bytes) + bytes;
  std::mt19937_64 random(1);
  const Bytes content = random_bytes(bytes, random);
  write_slot(*device, slot, 0, content);
  EXPECT_FALSE(rig().is_mapped(flat));
  device->attach(slot, flat);
  EXPECT_TRUE(device->attached(slot));
  EXPECT_EQ(rig().peek(flat, bytes), content);
  EXPECT_FALSE(rig().is_mapped(flat + bytes));
  rig().poke(flat + 5, {std::byte{200}});
  device->detach(slot);
  EXPECT_FALSE(device->attached(slot));
  EXPECT_FALSE(rig().is_mapped(flat));
  EXPECT_EQ(read_slot(*device, slot, 5, 1)[0], std::byte{200});
}

// Fifty lines that know nothing of pages: what every slot holds, and where it is.
namespace {

struct NaiveSlot {
  Bytes content;
  std::byte* address = nullptr;
};

}  // namespace

void run_against_model(DeviceRig& rig, bool strict, uint64_t seed, uint64_t slot_bytes, uint32_t slot_count,
                       int operations) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", slots of " + std::to_string(slot_bytes));
  std::mt19937_64 random(seed);
  const auto device = rig.make(slot_bytes * slot_count, strict);
  const std::vector<DeviceSlot> slots = device->create_slots(slot_bytes, slot_count, "chunks");
  const uint64_t places = slot_count + 3;
  std::byte* const ranges[] = {device->reserve_addresses(places * slot_bytes),
                               device->reserve_addresses(places * slot_bytes)};
  std::vector<NaiveSlot> model;
  for (const DeviceSlot slot : slots) {
    model.push_back({read_slot(*device, slot, 0, slot_bytes)});
    ASSERT_TRUE(strict ? is_poison(model.back().content) : model.back().content == Bytes(slot_bytes));
  }
  uint64_t h2d = 0, d2h = device->d2h_bytes();
  for (int i = 0; i < operations; ++i) {
    const auto s = static_cast<uint32_t>(random() % slot_count);
    NaiveSlot& expected = model[s];
    const uint64_t offset = random() % slot_bytes;
    const uint64_t bytes =
        random() % std::min<uint64_t>(slot_bytes - offset, 5000) + (random() % 8 == 0 ? 0 : 1);
    if (expected.address != nullptr) {
      ASSERT_EQ(rig.peek(expected.address, slot_bytes), expected.content);
      const Bytes fresh = random_bytes(bytes, random);
      rig.poke(expected.address + offset, fresh);
      std::copy(fresh.begin(), fresh.end(), expected.content.begin() + static_cast<ptrdiff_t>(offset));
      if (random() % 2 == 0) {
        device->detach(slots[s]);
        if (strict || rig.unmaps_at_once()) {
          ASSERT_FALSE(rig.is_mapped(expected.address));
        }
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
        device->attach(slots[s], address);
        expected.address = address;
        break;
      }
      case 1: {
        const Bytes fresh = random_bytes(bytes, random);
        write_slot(*device, slots[s], offset, fresh);
        std::copy(fresh.begin(), fresh.end(), expected.content.begin() + static_cast<ptrdiff_t>(offset));
        h2d += bytes;
        break;
      }
      case 2:
        ASSERT_EQ(read_slot(*device, slots[s], 0, slot_bytes), expected.content);
        d2h += slot_bytes;
        break;
      case 3:
        device->zero_in_order(slots[s], offset, bytes);
        std::fill_n(expected.content.begin() + static_cast<ptrdiff_t>(offset), bytes, std::byte{0});
        break;
    }
    ASSERT_EQ(device->h2d_bytes(), h2d);
    ASSERT_EQ(device->d2h_bytes(), d2h);
  }
}

TEST_P(DeviceSuite, DoesWhatANaiveModelDoes) {
  for (uint64_t seed = 1; seed <= 4; ++seed)
    run_against_model(rig(), seed % 2 == 0, seed, page * (1 + seed % 3), 7, 600 / kOneIn);
  const uint64_t large = round_up(kHugePageBytes, page);
  run_against_model(rig(), false, 7, large, 3, 60);
}

TEST_P(DeviceSuite, CopiesInOrderBothWaysAndAfterTheEventGiven) {
  const auto device = rig().make(page);
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  const Bytes ones(page, std::byte{1}), twos(page, std::byte{2});
  Bytes back(page);
  Event gate, first, second, third;
  for (Event* event : {&gate, &first, &second, &third}) event->begin();
  device->copy_to_device(slot, 0, ones.data(), ones.size(), &gate, first);
  device->copy_to_device(slot, 1, twos.data(), twos.size() - 1, nullptr, second);
  device->copy_to_host(back.data(), slot, 0, back.size(), &second, third);
  EXPECT_FALSE(second.done());  // in order behind the first, which waits
  gate.complete_one();
  third.wait();
  EXPECT_EQ(back[0], std::byte{1});
  EXPECT_EQ(back[1], std::byte{2});
  EXPECT_EQ(back.back(), std::byte{2});
}

TEST_P(DeviceSuite, PassesAFailureOnWithoutCopying) {
  const auto device = rig().make(page);
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  const Bytes ones(page, std::byte{1});
  Event read, arrived;
  read.begin();
  arrived.begin();
  device->copy_to_device(slot, 0, ones.data(), ones.size(), &read, arrived);
  read.complete_one(failure("the read failed"));
  EXPECT_THROW(arrived.wait(), std::runtime_error);
  EXPECT_EQ(device->h2d_bytes(), 0u);
  EXPECT_EQ(read_slot(*device, slot, 0, 1)[0], std::byte{0});
  device->attach(slot, device->reserve_addresses(page));  // nothing is in flight any more
}

TEST_P(DeviceSuite, ZerosASlotAttachedOrNot) {
  const auto device = rig().make(page);
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  std::byte* const flat = device->reserve_addresses(page);
  write_slot(*device, slot, 0, Bytes(page, std::byte{5}));
  device->zero_in_order(slot, 0, 100);
  device->attach(slot, flat);
  EXPECT_EQ(rig().peek(flat + 99, 2), (Bytes{std::byte{0}, std::byte{5}}));
  device->zero_in_order(slot, 0, page);
  EXPECT_EQ(rig().peek(flat, page), Bytes(page));
  EXPECT_EQ(device->h2d_bytes(), page);
}

TEST_P(DeviceSuite, FillsASlotInTheOrderOfOperations) {
  const auto device = rig().make(3 * page);
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  std::byte* const source = device->allocate_work_memory(2 * page).data();
  rig().poke(source, Bytes(page, std::byte{7}));
  device->fill_in_order(slot, 24, source, 500);
  device->copy_work_in_order(source, source + page, page);
  EXPECT_EQ(read_slot(*device, slot, 24, 500), Bytes(500, std::byte{7}));
}

TEST_P(DeviceSuite, CopiesWorkMemoryBothWaysAndWithin) {
  const auto device = rig().make(2 * page);
  std::byte* const first = device->allocate_work_memory(page).data();
  std::byte* const second = device->allocate_work_memory(page).data();
  std::mt19937_64 random(3);
  const Bytes content = random_bytes(page, random);
  Bytes back(page - 7);
  Event arrived, done;
  arrived.begin();
  device->copy_to_work(first, content.data(), page, nullptr, arrived);
  arrived.wait();
  device->copy_work_in_order(second + 7, first, page - 7);
  done.begin();
  device->copy_work_to_host(back.data(), second + 7, page - 7, &arrived, done);
  done.wait();
  EXPECT_EQ(back, Bytes(content.begin(), content.end() - 7));
  EXPECT_EQ(rig().peek(second, 7), Bytes(7));
  EXPECT_EQ(device->h2d_bytes(), page);
  EXPECT_EQ(device->d2h_bytes(), page - 7);
}

// Behind what has come to work memory; the link is not crossed, and nothing is waited for but `after`.
TEST_P(DeviceSuite, CopiesWorkMemoryToSlots) {
  const auto device = rig().make(2 * page);
  std::byte* const work = device->allocate_work_memory(page).data();
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  std::byte* const flat = device->reserve_addresses(page);
  std::mt19937_64 random(4);
  const Bytes content = random_bytes(page, random);
  Event gate, arrived, done;
  for (int round = 0; round < 3; ++round) {
    gate.begin(), arrived.begin(), done.begin();
    device->copy_to_work(work, content.data(), page, &gate, arrived);
    device->copy_work_to_slot(slot, 16, work + 8, page - 16, &arrived, done);
    gate.complete_one();
    done.wait();
    device->attach(slot, flat);
    EXPECT_EQ(rig().peek(flat + 16, page - 16), Bytes(content.begin() + 8, content.end() - 8));
    EXPECT_EQ(rig().peek(flat, 16), Bytes(16));
    device->detach(slot);
  }
  EXPECT_EQ(device->h2d_bytes(), 3 * page);
  EXPECT_EQ(device->d2h_bytes(), 0u);
}

// At once, or behind `after`; and whoever asks where a detached slot is finds its bytes there.
TEST_P(DeviceSuite, CopiesSlotsToWorkMemory) {
  const auto device = rig().make(2 * page);
  std::byte* const work = device->allocate_work_memory(page).data();
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  std::mt19937_64 random(5);
  const Bytes content = random_bytes(page, random);
  write_slot(*device, slot, 0, content);
  EXPECT_EQ(rig().peek(device->home(slot), page), content);
  Event gate, done;
  gate.begin(), done.begin(2);
  device->copy_slot_to_work(work, slot, 8, 16, nullptr, done);
  device->copy_slot_to_work(work + 16, slot, 100, page - 100, &gate, done);
  EXPECT_FALSE(done.done());
  gate.complete_one();
  done.wait();
  EXPECT_EQ(rig().peek(work, 16), Bytes(content.begin() + 8, content.begin() + 24));
  EXPECT_EQ(rig().peek(work + 16, page - 100), Bytes(content.begin() + 100, content.end()));
  EXPECT_EQ(device->h2d_bytes(), page);
  EXPECT_EQ(device->d2h_bytes(), 0u);
  device->attach(slot, device->reserve_addresses(page));  // nothing is in flight any more
}

TEST_P(DeviceSuite, PassesAFailureOnToCopiesWithin) {
  const auto device = rig().make(2 * page);
  std::byte* const work = device->allocate_work_memory(page).data();
  const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
  Event before, done;
  before.begin(), done.begin();
  device->copy_work_to_slot(slot, 0, work, page, &before, done);
  before.complete_one(failure("the update failed"));
  EXPECT_THROW(done.wait(), std::runtime_error);
  device->attach(slot, device->reserve_addresses(page));  // nothing is in flight any more
}

TEST_P(DeviceSuite, PassesAFailureOnToCopiesOfWorkMemory) {
  const auto device = rig().make(page);
  const std::span<std::byte> work = device->allocate_work_memory(page);
  const Bytes ones(page, std::byte{1});
  for (int i = 0; i < 3; ++i) {
    Event read, arrived;
    read.begin();
    arrived.begin();
    device->copy_to_work(work.data(), ones.data(), page, &read, arrived);
    read.complete_one(failure("the read failed"));
    EXPECT_THROW(arrived.wait(), std::runtime_error);
  }
  EXPECT_EQ(rig().peek(work.data(), page), Bytes(page));
}

TEST_P(DeviceSuite, ServesThreadsThatComeAndGo) {
  const auto on_a_thread = [](const auto& body) { std::thread(body).join(); };
  std::unique_ptr<Device> device;
  std::byte* flat = nullptr;
  std::vector<DeviceSlot> slots;
  std::span<std::byte> work;
  Bytes host(page, std::byte{7}), found(page);
  on_a_thread([&] { device = rig().make(4 * page, true); });
  on_a_thread([&] { flat = device->reserve_addresses(4 * page); });
  on_a_thread([&] { slots = device->create_slots(page, 2, "chunks"); });
  on_a_thread([&] { work = device->allocate_work_memory(2 * page); });
  for (int round = 0; round < 3; ++round) {
    on_a_thread([&] { device->poison(slots[0]); });
    on_a_thread([&] { device->zero_in_order(slots[1], 0, page); });
    on_a_thread([&] { write_slot(*device, slots[0], 0, host); });
    on_a_thread([&] { device->attach(slots[0], flat); });
    on_a_thread([&] { device->detach(slots[0]); });
    on_a_thread([&] { found = read_slot(*device, slots[0], 0, page); });
    EXPECT_EQ(found, host);
    Event there, back;
    there.begin(), back.begin();
    on_a_thread([&] { device->copy_to_work(work.data(), host.data(), page, nullptr, there); });
    there.wait();
    on_a_thread([&] { device->copy_work_in_order(work.data() + page, work.data(), page); });
    found.assign(page, std::byte{0});
    on_a_thread([&] { device->copy_work_to_host(found.data(), work.data() + page, page, nullptr, back); });
    back.wait();
    EXPECT_EQ(found, host);
  }
  on_a_thread([&] { device.reset(); });
}

TEST_P(DeviceSuite, AttachesAnotherSlotWhereOneWasJustDetached) {
  const auto device = rig().make(3 * page);
  const std::vector<DeviceSlot> slots = device->create_slots(page, 3, "chunks");
  std::byte* const flat = device->reserve_addresses(page);
  for (uint32_t i = 0; i < 30; ++i) {
    const Bytes content(page, static_cast<std::byte>(i));
    write_slot(*device, slots[i % 3], 0, content);
    device->attach(slots[i % 3], flat);
    ASSERT_EQ(rig().peek(flat, page), content);
    device->detach(slots[i % 3]);
  }
}

TEST_P(DeviceSuite, AlignsLargeMemoryToHugePages) {
  const auto device = rig().make(2 * round_up(3 * kMiB, page));
  const auto aligned = [](const std::byte* address, uint64_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
  };
  EXPECT_TRUE(aligned(device->reserve_addresses(1), kHugePageBytes));
  EXPECT_TRUE(aligned(device->allocate_work_memory(3 * kMiB).data(), kHugePageBytes));
  EXPECT_TRUE(aligned(device->allocate_work_memory(100).data(), page));
}

TEST_P(DeviceSuite, PoisonsWhatIsFreshOrFreedInStrictModeOnly) {
  for (const bool strict : {true, false}) {
    const auto device = rig().make(2 * page, strict);
    EXPECT_EQ(device->strict(), strict);
    const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
    EXPECT_EQ(is_poison(read_slot(*device, slot, 0, page)), strict);
    const std::span<std::byte> work = device->allocate_work_memory(page);
    EXPECT_EQ(is_poison(rig().peek(work.data(), page)), strict);
    write_slot(*device, slot, 0, Bytes(page, std::byte{1}));
    device->poison(slot);
    EXPECT_EQ(is_poison(read_slot(*device, slot, 0, page)), strict);
  }
}

TEST_P(DeviceSuiteDeathTest, RefusesToMoveASlotWithACopyInFlight) {
  EXPECT_DEATH(
      {
        const auto device = rig().make(page);
        const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
        const Bytes bytes(page);
        Event gate;
        Event done;
        gate.begin();
        done.begin();
        device->copy_to_device(slot, 0, bytes.data(), page, &gate, done);
        device->attach(slot, device->reserve_addresses(page));
      },
      "cannot attach a slot with 1 copies in flight");
}

TEST_P(DeviceSuiteDeathTest, RefusesCopiesOfAttachedSlotsAndBeyondTheirEnd) {
  EXPECT_DEATH(
      {
        const auto device = rig().make(page);
        const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
        device->attach(slot, device->reserve_addresses(page));
        read_slot(*device, slot, 0, 1);
      },
      "a copy acts on a detached slot");
  EXPECT_DEATH(
      {
        const auto device = rig().make(page);
        read_slot(*device, device->create_slots(page, 1, "chunks")[0], page - 1, 2);
      },
      "are not in a slot of");
}

TEST_P(DeviceSuiteDeathTest, RefusesAddressesThatAreTakenOrNotReserved) {
  EXPECT_DEATH(
      {
        const auto device = rig().make(4 * page);
        const std::vector<DeviceSlot> slots = device->create_slots(2 * page, 2, "chunks");
        std::byte* const flat = device->reserve_addresses(8 * page);
        device->attach(slots[0], flat + 2 * page);
        device->attach(slots[1], flat + 3 * page);
      },
      "another slot is attached at these addresses");
  EXPECT_DEATH(
      {
        const auto device = rig().make(4 * page);
        const std::vector<DeviceSlot> slots = device->create_slots(2 * page, 2, "chunks");
        std::byte* const flat = device->reserve_addresses(8 * page);
        device->attach(slots[0], flat + 2 * page);
        device->attach(slots[1], flat + page);
      },
      "another slot is attached at these addresses");
  EXPECT_DEATH(
      {
        const auto device = rig().make(2 * page);
        const DeviceSlot slot = device->create_slots(2 * page, 1, "chunks")[0];
        device->attach(slot, device->reserve_addresses(2 * page) + page);
      },
      "does not fit the reserved addresses");
}

TEST_P(DeviceSuiteDeathTest, RefusesToAttachOrDetachTwice) {
  EXPECT_DEATH(
      {
        const auto device = rig().make(page);
        const DeviceSlot slot = device->create_slots(page, 1, "chunks")[0];
        std::byte* const flat = device->reserve_addresses(2 * page);
        device->attach(slot, flat);
        device->attach(slot, flat + page);
      },
      "is attached already");
  EXPECT_DEATH(
      {
        const auto device = rig().make(page);
        device->detach(device->create_slots(page, 1, "chunks")[0]);
      },
      "is not attached");
}

}  // namespace terrace::testing
