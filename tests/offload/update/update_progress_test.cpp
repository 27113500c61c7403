#include <terrace/offload/update/update_progress.h>

#include <gtest/gtest.h>

namespace terrace::update_progress_test {
namespace {

TEST(UpdateProgress, TellsWhenAChunkWasNeededFirst) {
  constexpr ChunkId kChunk{1};
  const SteadyClock clock;
  UpdateProgress progress(2);
  progress.begin_update();
  progress.begin(kChunk);
  progress.note_needed(kChunk);
  const uint64_t between = clock.now_ns();
  while (clock.now_ns() == between) {
  }
  progress.note_needed(kChunk);
  progress.complete(kChunk);
  progress.end_update();
  ASSERT_EQ(progress.last_times().size(), 1u);
  EXPECT_EQ(progress.last_times()[0].chunk, kChunk);
  EXPECT_LE(progress.last_times()[0].needed_ns, between);
  EXPECT_GT(progress.last_times()[0].updated_ns, between);
}

}  // namespace
}  // namespace terrace::update_progress_test
