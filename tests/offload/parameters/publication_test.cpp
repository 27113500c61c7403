// The way home of fresh parameters, on a store and an engine that goes wrong as planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/offload/parameters/publication.h>

#include "offload/homes_rig.h"

namespace terrace::publication_test {
namespace {

constexpr uint32_t kChunks = HomesRig::kChunks;

class PublicationTest : public ::testing::Test {
 protected:
  PublicationTest() : homes(kChunks) { rig.make_store_of(rig.plan.slot_bytes); }
  std::unique_ptr<Publication> publication() {
    rig.wishes.parameters = Placement::nvme;
    return std::make_unique<Publication>(rig.run, ParameterHomes{{rig.store.get()}, homes});
  }
  std::byte* buffer(uint32_t number) { return rig.pages.memory().data() + number * rig.plan.slot_bytes; }

  HomesRig rig;
  std::vector<std::byte*> homes;
};

TEST_F(PublicationTest, LeavesWhatHasAHostSlotWhereItWasMade) {
  homes[1] = buffer(1);
  const auto published = publication();
  EXPECT_EQ(published->publish(ChunkId{1}, buffer(1), rig.engine.get(), nullptr), nullptr);
  EXPECT_EQ(published->nvme_write_bytes(), 0u);
  published->finish(rig.engine.get());
}

TEST_F(PublicationTest, WritesToTheTierFileAndIsNamedMeanwhile) {
  const auto published = publication();
  for (uint32_t c = 0; c < kChunks; ++c) {
    fill_random({buffer(c), rig.plan.slot_bytes}, 10 + c);
    ASSERT_NE(published->publish(ChunkId{c}, buffer(c), rig.engine.get(), nullptr), nullptr);
  }
  EXPECT_EQ(published->subject().what, "fresh parameters");
  EXPECT_EQ(published->subject().chunk, ChunkId{0});
  EXPECT_NE(published->subject().request, nullptr);
  published->finish(rig.engine.get());
  EXPECT_EQ(published->subject().request, nullptr);
  EXPECT_EQ(published->nvme_write_bytes(), kChunks * rig.plan.slot_bytes);
  for (uint32_t c = 0; c < kChunks; ++c) EXPECT_TRUE(rig.holds(*rig.store, ChunkId{c}, 0, 10 + c));
}

TEST_F(PublicationTest, ThrowsAForgottenFailureWhenItFinishesUnlessItWasSeen) {
  for (const bool seen : {false, true}) {
    rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::write}});
    const auto published = publication();
    const Event* const gone = published->publish(ChunkId{0}, buffer(0), rig.engine.get(), nullptr);
    published->wait(*gone, rig.engine.get());
    EXPECT_TRUE(gone->failed());
    if (seen) {
      published->forget_all();
      published->finish(rig.engine.get());
    } else {
      published->forget(*gone);
      EXPECT_EQ(error_of([&] { published->finish(rig.engine.get()); }).kind(), ErrorKind::io);
      published->finish(rig.engine.get());
    }
  }
}

TEST_F(PublicationTest, KnowsWhatTheTierLacksUntilItIsCopied) {
  const auto published = publication();
  EXPECT_FALSE(published->is_newer_on_device(ChunkId{2}));
  published->note_made_on_device(ChunkId{2});
  EXPECT_TRUE(published->is_newer_on_device(ChunkId{2}));
  EXPECT_FALSE(published->is_newer_on_device(ChunkId{1}));
  published->note_copied_to_tier(ChunkId{2});
  EXPECT_FALSE(published->is_newer_on_device(ChunkId{2}));
}

}  // namespace
}  // namespace terrace::publication_test
