// The order of a commit's writes, and commits that fail where it is not known what became of them.
#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/offload/commits/committer.h>

#include <gtest/gtest.h>

#include <terrace/aio/file_events.h>
#include <terrace/base/error.h>
#include <terrace/memory/host/host_arena.h>

#include "offload/commits/commit_rig.h"

namespace terrace::committer_test {
namespace {

// Notes where requests take their bytes from.
class NotingEngine final : public io::EngineDecorator {
 public:
  NotingEngine(std::unique_ptr<io::Engine> base, std::vector<const std::byte*>& noted)
      : io::EngineDecorator(std::move(base)), noted_(noted) {}
  void submit(std::span<const io::Request> requests) override {
    for (const io::Request& request : requests) noted_.push_back(request.data);
    base().submit(requests);
  }

 private:
  std::vector<const std::byte*>& noted_;
};

void expect_written_next(bool is_asked_for) {
  constexpr uint64_t kBlock = 4096;
  constexpr uint32_t kChunks = 4, kBlocks = 16;
  const ScratchFolder folder;
  MemoryLog log;
  StepWatch watch;
  TierSpace space({.paths = {{folder.path(), 0}}}, log);
  const std::unique_ptr<io::Engine> engine = io::make_engine({.kind = io::EngineKind::threads});
  BlockStoreOptions options;
  options.name = "records";
  options.block_bytes = kBlock;
  options.chunk_bytes.assign(kChunks, kBlocks * kBlock);
  options.spare_slots = kChunks * kBlocks;
  options.in_place = false;
  BlockStore store(space, options, *engine, log);
  HostArena arena({kChunks * kBlocks * kBlock, false}, log);
  const std::span<std::byte> memory = arena.take(kChunks * kBlocks * kBlock, "records");

  std::vector<const std::byte*> written;
  std::atomic<bool> waits{false}, open{false};
  auto noting = std::make_unique<NotingEngine>(io::make_engine({.kind = io::EngineKind::threads}), written);
  auto gated = std::make_unique<GateEngine>(std::move(noting), [&] {
    waits = true;
    while (!open) std::this_thread::yield();
  });
  Committer committer({&space, {&store}}, kChunks, 0, std::move(gated), watch, log);
  for (uint32_t c = 0; c < kChunks; ++c)
    committer.add_cached(CommitPart::records, ChunkId{c}, memory.data() + c * kBlocks * kBlock, true);
  StateCustody custody(false);
  custody.begin_loading(StatePart::trained);
  custody.end_loading(StatePart::trained);
  committer.begin(custody.whole("cannot commit"), "", {}, false);
  while (!waits) std::this_thread::yield();
  if (is_asked_for) {
    EXPECT_FALSE(committer.may_change(ChunkId{2}));
  }
  std::thread opening([&] {
    while (!is_asked_for && !watch.current()) std::this_thread::yield();
    open = true;
  });
  committer.before_change(ChunkId{2});
  opening.join();
  EXPECT_EQ(committer.finish(), 1u);
  EXPECT_TRUE(committer.may_change(ChunkId{2}));
  ASSERT_EQ(written.size(), kChunks * kBlocks);
  // What had begun, then all of the chunk that was asked for, then the others in their order.
  const auto place = [&](uint32_t chunk) {
    return std::ranges::find(written, memory.data() + chunk * kBlocks * kBlock) - written.begin();
  };
  EXPECT_EQ(place(0), 0);
  EXPECT_EQ(place(2), 4);
  EXPECT_EQ(place(1), kBlocks + kBlocks);
  EXPECT_EQ(place(3), 3 * kBlocks);
}

TEST(Committer, WritesTheChunkThatIsWaitedForNext) {
  for (const bool is_asked_for : {true, false}) expect_written_next(is_asked_for);
}

// Fails once a manifest has its name and before that is known to be durable.
class FailingRename final : public io::FileEvents {
 public:
  void folder_created(const Path&) override {}
  void created(const Path&) override {}
  void resized(const Path&, uint64_t) override {}
  void written(const Path&, uint64_t, std::span<const std::byte>) override {}
  void sync_begins(const Path&) override {}
  void synced(const Path&) override {}
  void renamed(const Path&, const Path& to) override {
    if (to.extension() == ".manifest" && renames_++ == 1)
      throw Error(ErrorKind::io, {"cannot sync the folder of", to.string(), system_reason(EIO), ""});
  }
  void removed(const Path&) override {}
  void folder_synced(const Path&) override {}

 private:
  std::atomic<int> renames_{0};
};

TEST(Committer, KeepsTheBlocksOfAManifestThatMayHaveBecomeDurable) {
  for (const bool commits_again : {false, true}) {
    FailingRename events;
    CommitCase c{.cached_quarters = 2};
    const auto expected = states_without_commits(c, 5);
    c.events = &events;
    const ScratchFolder folder;
    {
      CommitRig rig(c, folder.path());
      rig.step(1);
      rig.offloader->commits().begin(step_info(1));
      rig.offloader->commits().finish();
      rig.step(2);
      rig.offloader->commits().begin(step_info(2));
      EXPECT_THROW(rig.offloader->commits().finish(), Error);
      EXPECT_EQ(rig.offloader->commits().last(), 1u);
      if (commits_again) {
        rig.offloader->commits().begin(step_info(2) + " again");
        EXPECT_EQ(rig.offloader->commits().finish(), 3u);
      }
      // Both may be what is found: nothing of either is written over, whatever becomes of this step.
      try {
        for (uint64_t step = 3; step <= 5; ++step) rig.step(step);
      } catch (const Error& error) {
        EXPECT_FALSE(commits_again) << error.what();
        EXPECT_EQ(error.kind(), ErrorKind::capacity) << error.what();
        EXPECT_NE(std::string(error.what()).find("no slot is free"), std::string::npos) << error.what();
      }
    }
    c.events = nullptr;
    c.start = TierStart::resume;
    CommitRig resumed(c, folder.path());
    EXPECT_EQ(step_of(resumed.offloader->commits().taken_up_info()), 2u);
    EXPECT_EQ(resumed.state(), expected[2]);
    EXPECT_EQ(resumed.offloader->commits().last(), commits_again ? 3u : 2u);
  }
}

TEST(Committer, SaysWhatADurableRunMayGiveUpWhenTheDiskIsTooSmall) {
  const ScratchFolder folder;
  try {
    CommitRig rig({.retained = 3'000'000'000u}, folder.path());
    FAIL() << "there is no such disk";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(std::string(error.what()).find("set OffloadOptions::durable to false"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find(folder.path().string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace terrace::committer_test
