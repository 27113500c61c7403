#include <terrace/offload/parameters/old_parameters.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "offload/landing/gradient_rig.h"

namespace terrace::old_parameters_test {
namespace {

class OldParametersTest : public ::testing::Test {
 protected:
  OldParametersTest() : homes(HomesRig::kChunks) {
    rig.plan.old_parameter_slots = 1;
    rig.make_store_of(rig.plan.slot_bytes);
    rig.fill_store();
  }
  std::unique_ptr<OldParameters> old() {
    return std::make_unique<OldParameters>(rig.run, rig.arena, ParameterHomes{{rig.store.get()}, homes});
  }

  HomesRig rig;
  std::vector<std::byte*> homes;
};

TEST_F(OldParametersTest, AreReadIntoOneSlotAfterTheOther) {
  const auto parameters = old();
  for (uint32_t c = 0; c < 2; ++c) {
    ASSERT_TRUE(parameters->start_open(ChunkId{c}, rig.engine.get(), nullptr));
    EXPECT_FALSE(parameters->start_open(ChunkId{2}, rig.engine.get(), nullptr)) << "the only slot is taken";
    parameters->wait_open(ChunkId{c});
    EXPECT_FALSE(parameters->is_reading());
    EXPECT_TRUE(hold_seed(parameters->parameters(ChunkId{c}), 100 + c, rig.plan.slot_bytes));
    parameters->release(ChunkId{c});
  }
  EXPECT_EQ(parameters->nvme_read_bytes(), 2 * rig.plan.slot_bytes);
}

TEST_F(OldParametersTest, AreThoseOfAHostSlotWhereThereIsOne) {
  std::vector<std::byte> home(rig.plan.slot_bytes);
  homes[1] = home.data();
  const auto parameters = old();
  EXPECT_TRUE(parameters->is_open(ChunkId{1}));
  EXPECT_TRUE(parameters->start_open(ChunkId{1}, rig.engine.get(), nullptr));
  EXPECT_EQ(parameters->parameters(ChunkId{1}), home.data());
  EXPECT_EQ(parameters->nvme_read_bytes(), 0u);
}

TEST_F(OldParametersTest, ThrowWhatTheirReadFailedWithWhenTheyAreAskedFor) {
  rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  const auto parameters = old();
  ASSERT_TRUE(parameters->start_open(ChunkId{0}, rig.engine.get(), nullptr));
  parameters->wait_open(ChunkId{0});
  EXPECT_EQ(error_of([&] { parameters->parameters(ChunkId{0}); }).kind(), ErrorKind::io);
  parameters->release(ChunkId{0});
}

TEST(OldParameters, AreCopiedFromTheDeviceOnceTheyHaveArrivedThere) {
  constexpr ChunkId kChunk{1};
  GradientRig rig;
  rig.plan.old_parameter_slots = 1;
  const std::vector<std::byte*> homes(HomesRig::kChunks);
  OldParameters old(rig.run, rig.arena, ParameterHomes{{}, homes});
  rig.cache->begin_in_place(kChunk, *rig.cache->take_unused());
  rig.cache->detach_param(kChunk);
  CacheSlot& slot = rig.cache->param_slot(kChunk);
  slot.in.begin(to_device_copy("fresh parameters", kChunk));
  ASSERT_TRUE(old.start_open(kChunk, nullptr, rig.cache.get()));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(old.is_open(kChunk));
  const std::span<std::byte> fresh = rig.pages.memory().first(rig.plan.slot_bytes);
  fill_random(fresh, 7);
  rig.device.copy_to_device(slot.id, 0, fresh.data(), fresh.size(), nullptr, slot.in);
  old.wait_open(kChunk);
  EXPECT_TRUE(hold_seed(old.parameters(kChunk), 7, rig.plan.slot_bytes));
  EXPECT_EQ(old.d2h_bytes(), rig.plan.slot_bytes);
  old.release(kChunk);
}

}  // namespace
}  // namespace terrace::old_parameters_test
