// A share lies on the device from its first element on, and comes to its own place in a slot: behind the copy
// that writes it, and never where that failed.
#include <terrace/offload/parameters/device_shares.h>

#include <gtest/gtest.h>

#include "offload/homes_rig.h"

namespace terrace::device_shares_test {
namespace {

// The second of two ranks over chunks of three tiles has the last one of each.
struct DeviceSharesTest : ::testing::Test {
  DeviceSharesTest() {
    rig.plan.device_slots = 1;
    rig.plan.device_share_bytes = kOfFirst * HomesRig::kChunks;
    shares = std::make_unique<DeviceShares>(rig.shards, rig.plan, rig.device, rig.watch);
    slot.id = rig.device.create_slots(rig.plan.slot_bytes, 1, "a chunk")[0];
  }
  // As if it were the bytes of the seed.
  void write(ChunkId chunk, uint64_t seed) {
    const std::vector<std::byte> bytes = HomesRig::bytes_of_seed(seed, kOwn);
    shares->write(chunk, 0, bytes.data(), kOwn, nullptr);
    shares->written(chunk).wait();
  }
  bool slot_holds(uint64_t seed) {
    std::vector<std::byte> found(rig.plan.slot_bytes);
    Event copied;
    copied.begin();
    rig.device.copy_to_host(found.data(), slot.id, 0, found.size(), nullptr, copied);
    copied.wait();
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    return hold_seed(found.data() + kOfFirst, seed, kOwn) &&
           std::all_of(found.begin(), found.begin() + kOfFirst, is_zero);
  }

  static constexpr uint64_t kTileBytes = kTileElements * sizeof(Bf16);
  static constexpr uint64_t kOfFirst = 2 * kTileBytes, kOwn = kTileBytes;
  HomesRig rig{
      {.budget_bytes = 8 * kMiB}, {{"w", {HomesRig::kChunks * 3 * kTileElements}, DataType::bf16}}, 3, 1, 2};
  CacheSlot slot;
  std::unique_ptr<DeviceShares> shares;
};

TEST_F(DeviceSharesTest, ComeToTheirPlaceInASlotOverNoLink) {
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) write(ChunkId{c}, 10 + c);
  const uint64_t written = rig.device.h2d_bytes();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) {
    DeviceCopy share;
    share.begin();
    shares->copy_to(ChunkId{c}, slot, share);
    share.wait();
    EXPECT_TRUE(slot_holds(10 + c)) << c;
  }
  EXPECT_EQ(rig.device.h2d_bytes(), written);
}

TEST_F(DeviceSharesTest, AreReadAndWrittenInPart) {
  write(ChunkId{1}, 3);
  const std::vector<std::byte> bytes = HomesRig::bytes_of_seed(4, 100);
  shares->write(ChunkId{1}, 60, bytes.data(), 100, nullptr);
  std::vector<std::byte> expected = HomesRig::bytes_of_seed(3, kOwn), found(200);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 60);
  shares->read(ChunkId{1}, 30, found.data(), 200);
  EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + 30));
}

// The slot is still on its way out, and the share on its way in.
TEST_F(DeviceSharesTest, WaitForTheirUpdateAndForTheSlot) {
  const std::vector<std::byte> fresh = HomesRig::bytes_of_seed(5, kOwn);
  std::vector<std::byte> left(rig.plan.slot_bytes);
  write(ChunkId{2}, 6);
  for (const bool update_first : {true, false}) {
    Event update, leaving;
    update.begin(), leaving.begin();
    slot.out.begin();
    rig.device.copy_to_host(left.data(), slot.id, 0, left.size(), &leaving, slot.out);
    shares->write(ChunkId{2}, 0, fresh.data(), kOwn, &update);
    DeviceCopy share;
    share.begin();
    shares->copy_to(ChunkId{2}, slot, share);
    EXPECT_FALSE(share.done());
    (update_first ? update : leaving).complete_one();
    (update_first ? leaving : update).complete_one();
    share.wait();
    EXPECT_TRUE(slot_holds(5));
  }
}

TEST_F(DeviceSharesTest, DoNotComeWhereTheirUpdateFailed) {
  const std::vector<std::byte> fresh = HomesRig::bytes_of_seed(7, kOwn);
  Event update;
  update.begin();
  shares->write(ChunkId{0}, 0, fresh.data(), kOwn, &update);
  update.complete_one(std::make_exception_ptr(std::runtime_error("the update failed")));
  shares->written(ChunkId{0}).wait_done();
  DeviceCopy share;
  share.begin();
  shares->copy_to(ChunkId{0}, slot, share);
  EXPECT_THROW(share.wait(), std::runtime_error);
}

}  // namespace
}  // namespace terrace::device_shares_test
