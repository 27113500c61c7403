// In what order the tier changes the disk: what docs/nvme_format.md promises of a power cut rests on it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/aio/file_events.h>

#include "block_store_rig.h"

namespace terrace::tier_order_test {
namespace {

// Every change as a line; names without their folders.
class Recorder final : public io::FileEvents {
 public:
  void folder_created(const Path& path) override { note("folder", path); }
  void created(const Path& path) override { note("create", path); }
  void resized(const Path& path, uint64_t) override { note("resize", path); }
  void written(const Path& path, uint64_t, std::span<const std::byte>) override { note("write", path); }
  void sync_begins(const Path&) override {}
  void synced(const Path& path) override { note("sync", path); }
  void renamed(const Path& from, const Path& to) override {
    lines_.push_back(fmt::format("rename {} {}", from.filename().string(), to.filename().string()));
  }
  void removed(const Path& path) override { note("remove", path); }
  void folder_synced(const Path& path) override {
    note(path.filename() == "terrace-tier" ? "sync" : "sync the path of",
         path.filename() == "terrace-tier" ? path : Path("it"));
  }
  std::vector<std::string> take() { return std::exchange(lines_, {}); }

 private:
  void note(const char* what, const Path& path) {
    lines_.push_back(fmt::format("{} {}", what, path.filename().string()));
  }
  std::vector<std::string> lines_;
};

using Lines = std::vector<std::string>;

TEST(TierOrder, IsTheOneThatACrashAtAnyMomentAllows) {
  Recorder recorder;
  BlockStoreRig rig;
  rig.space =
      std::make_unique<TierSpace>(TierSpaceOptions{.paths = rig.paths(), .events = &recorder}, rig.log);
  EXPECT_EQ(recorder.take(),
            (Lines{"folder terrace-tier", "create space.new", "write space.new", "sync space.new",
                   "rename space.new space", "sync terrace-tier", "sync the path of it"}));
  {
    const auto store = rig.make_store(
        {.name = "records", .block_bytes = 4096, .chunk_bytes = {4096}, .spare_slots = 3, .in_place = false});
    EXPECT_EQ(recorder.take(),
              (Lines{"create records.tier.new", "write records.tier.new", "sync records.tier.new",
                     "rename records.tier.new records.tier", "sync terrace-tier"}));
    rig.write(*store, ChunkId{0}, 0, 1);
    const BlockStore::Snapshot first = store->snapshot();
    rig.commit(*store, first);
    const std::string one = "commit-0000000000000001.manifest", two = "commit-0000000000000002.manifest";
    EXPECT_EQ(recorder.take(),
              (Lines{"sync records.tier", "create " + one + ".new", "write " + one + ".new",
                     "sync " + one + ".new", "rename " + one + ".new " + one, "sync terrace-tier"}));
    // Nothing was written since: no file needs to be synced.
    rig.commit(*store, store->snapshot());
    EXPECT_EQ(recorder.take(),
              (Lines{"create " + two + ".new", "write " + two + ".new", "sync " + two + ".new",
                     "rename " + two + ".new " + two, "sync terrace-tier", "remove " + one}));
    rig.space->retain_commit(2);
    const std::string kept = "commit-0000000000000002.retained";
    EXPECT_EQ(recorder.take(), (Lines{"rename " + two + " " + kept, "sync terrace-tier"}));
    rig.space->remove_commit(2);
    EXPECT_EQ(recorder.take(), (Lines{"remove " + kept, "sync terrace-tier"}));
    rig.commit(*store, first);
    recorder.take();
  }
  rig.space.reset();
  EXPECT_EQ(recorder.take(), (Lines{"remove commit-0000000000000001.manifest", "sync terrace-tier",
                                    "remove records.tier", "remove space", "remove terrace-tier"}));
}

}  // namespace
}  // namespace terrace::tier_order_test
