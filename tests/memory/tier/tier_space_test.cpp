#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <terrace/base/checksum.h>
#include <terrace/memory/tier/internal/tier_files.h>

#include "block_store_rig.h"
#include "support/expect_error.h"

namespace terrace::tier_space_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

class TierSpaceTest : public ::testing::Test, public BlockStoreRig {
 protected:
  TierSpaceTest() : BlockStoreRig(2) {}
  std::string folder(size_t place) const { return places[place] / "terrace-tier"; }
  std::string manifest(uint64_t commit = 1) const {
    return folder(0) + "/" + tier::commit_file_name({.commit = commit});
  }
  BlockStoreOptions options() const {
    return {.name = "records",
            .block_bytes = kBlock,
            .chunk_bytes = {6 * kBlock},
            .spare_slots = 8,
            .in_place = false};
  }
  // A commit whose block n holds bytes of 100 + n, over both paths; then the job is gone and its files are
  // not.
  void leave_a_commit() {
    open_space();
    {
      const auto store = make_store(options());
      for (uint32_t b = 0; b < 6; ++b) write(*store, ChunkId{0}, b, 100 + b);
      commit(*store, store->snapshot(), "the words of the caller");
    }
    space->keep_files(true);
    space.reset();
  }
  std::unique_ptr<BlockStore> reopen() {
    return std::make_unique<BlockStore>(*space, options(),
                                        space->read_commit(space->commits().back().commit).stores[0],
                                        std::span<const StoreLayout>(), log);
  }
  void resume(std::vector<TierPath> paths) {
    space = std::make_unique<TierSpace>(
        TierSpaceOptions{.paths = std::move(paths), .start = TierStart::resume}, log);
  }
  FoundTier look(std::vector<fs::path> paths) const { return look_at_tier(paths); }
  FoundTier look() const { return look({places[0].path(), places[1].path()}); }
};

TEST_F(TierSpaceTest, LeavesNothingBehindUnlessItIsKept) {
  open_space();
  { const auto store = make_store(options()); }
  EXPECT_TRUE(fs::exists(folder(0) + "/records.tier"));
  EXPECT_TRUE(fs::exists(folder(1) + "/records.tier"));
  struct stat status;
  ASSERT_EQ(stat((folder(1) + "/space").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  space.reset();
  EXPECT_TRUE(fs::is_empty(places[0].path()));
  EXPECT_TRUE(fs::is_empty(places[1].path()));
  EXPECT_TRUE(log.lines().empty());
}

TEST_F(TierSpaceTest, RemovesWhatADeadJobLeftWithoutACommitAndSaysHowMuch) {
  open_space();
  { const auto store = make_store(options()); }
  space->keep_files(true);
  space.reset();
  EXPECT_EQ(look().trouble, "nothing was committed there");
  open_space();
  EXPECT_FALSE(fs::exists(folder(0) + "/records.tier"));
  const std::vector<MemoryLog::Line> lines = log.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].text.find("that an earlier run left in " + folder(0)), std::string::npos)
      << lines[0].text;
}

TEST_F(TierSpaceTest, DoesNotRemoveACommitUnlessItIsTold) {
  leave_a_commit();
  expect_error(ErrorKind::config,
               {folder(0), "commit 1", "OffloadOptions::tier_start", "OffloadOptions::discard_commits"},
               [&] { open_space(); });
  EXPECT_TRUE(fs::exists(manifest()));
  EXPECT_TRUE(look().whole);
  open_space(TierStart::fresh, true);
  EXPECT_FALSE(fs::exists(manifest()));
  EXPECT_FALSE(look().whole);
}

// Nothing is removed before it is known that the new files can be made.
TEST_F(TierSpaceTest, RemovesNothingWhereATierFileHasLostItsMark) {
  leave_a_commit();
  const std::string file = folder(1) + "/records.tier";
  fs::resize_file(file, fs::file_size(file) - 100);
  expect_error(ErrorKind::config, {file, "is none"}, [&] { open_space(TierStart::fresh, true); });
  EXPECT_TRUE(fs::exists(manifest()));
  EXPECT_TRUE(fs::exists(file));
}

// It may be all that is left of a state.
TEST_F(TierSpaceTest, DoesNotRemoveADamagedCommitEither) {
  leave_a_commit();
  fs::resize_file(manifest(), 100);
  expect_error(ErrorKind::config, {folder(0), "commit 1 is damaged", "OffloadOptions::discard_commits"},
               [&] { open_space(); });
  expect_error(ErrorKind::corrupt, {manifest()}, [&] { open_space(TierStart::resume); });
  EXPECT_TRUE(fs::exists(manifest()));
  EXPECT_TRUE(fs::exists(folder(1) + "/records.tier"));
  const FoundTier found = look();
  EXPECT_TRUE(found.present);
  EXPECT_FALSE(found.whole);
  EXPECT_NE(found.trouble.find("checksum"), std::string::npos) << found.trouble;
  open_space(TierStart::fresh, true);
}

TEST_F(TierSpaceTest, DoesNotRemoveThePathOfACommitThatLiesElsewhere) {
  leave_a_commit();
  const auto second_alone = [&](bool discard) {
    space = std::make_unique<TierSpace>(
        TierSpaceOptions{.paths = {{places[1].path()}}, .discard_commits = discard}, log);
  };
  expect_error(ErrorKind::config, {folder(1), "path 2 of 2"}, [&] { second_alone(false); });
  EXPECT_TRUE(fs::exists(folder(1) + "/records.tier"));
  second_alone(true);
  EXPECT_FALSE(fs::exists(folder(1) + "/records.tier"));
}

TEST_F(TierSpaceTest, IsRecognisedWhateverTheOrderOfItsPaths) {
  leave_a_commit();
  resume({{places[1].path(), 5.0}, {places[0].path(), 3.0}});
  EXPECT_EQ(space->folder(0).path(), folder(0));
  EXPECT_EQ(space->paths()[0].bytes_per_second, 3.0);
  const auto store = reopen();
  for (uint32_t b = 0; b < 6; ++b) EXPECT_TRUE(holds(*store, ChunkId{0}, b, 100 + b));
  EXPECT_TRUE(look({places[1].path(), places[0].path()}).whole);
}

TEST_F(TierSpaceTest, IsNotTakenUpFromPathsThatAreNotItsOwn) {
  leave_a_commit();
  expect_error(ErrorKind::config, {"is one of 2 paths, and 1 is given"},
               [&] { resume({{places[0].path()}}); });
  const ScratchFolder other;
  expect_error(ErrorKind::config, {"has no label"}, [&] { resume({{places[0].path()}, {other.path()}}); });
  {
    MemoryLog quiet;
    TierSpace another(TierSpaceOptions{.paths = {{other.path()}}}, quiet);
    another.keep_files(true);
  }
  expect_error(ErrorKind::config, {"is of another run than"}, [&] {
    resume({{places[0].path()}, {other.path()}});
  });
  const ScratchFolder copy;
  fs::copy(places[0].path(), copy.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  expect_error(ErrorKind::config, {"are copies of one folder"}, [&] {
    resume({{places[0].path()}, {copy.path()}});
  });
  EXPECT_FALSE(look({places[0].path(), copy.path()}).whole);
  EXPECT_TRUE(look().whole);  // none of that changed anything
}

TEST_F(TierSpaceTest, IsTakenUpFromFoldersThatWereMoved) {
  leave_a_commit();
  const ScratchFolder moved;
  fs::rename(folder(0), moved / "terrace-tier");
  resume({{moved.path()}, {places[1].path()}});
  const auto store = reopen();
  EXPECT_TRUE(holds(*store, ChunkId{0}, 5, 105));
}

TEST_F(TierSpaceTest, RefusesWhatANewerTerraceWroteAndLeavesIt) {
  leave_a_commit();
  std::vector<std::byte> label(fs::file_size(folder(0) + "/space"));
  const int fd = open((folder(0) + "/space").c_str(), O_RDWR);
  ASSERT_EQ(pread(fd, label.data(), label.size(), 0), static_cast<ssize_t>(label.size()));
  label[8] = std::byte{9};
  const uint64_t checksum = checksum_of(std::span(label).first(label.size() - 8));
  for (size_t b = 0; b < 8; ++b) label[label.size() - 8 + b] = static_cast<std::byte>(checksum >> (8 * b));
  ASSERT_EQ(pwrite(fd, label.data(), label.size(), 0), static_cast<ssize_t>(label.size()));
  close(fd);
  expect_error(ErrorKind::config, {"format version 9"}, [&] { open_space(TierStart::resume); });
  expect_error(ErrorKind::config, {"format version 9"}, [&] { open_space(TierStart::fresh, true); });
  EXPECT_TRUE(fs::exists(manifest()));
  EXPECT_FALSE(look().whole);
}

TEST_F(TierSpaceTest, ResumesNothingWhereThereIsNothing) {
  expect_error(ErrorKind::config, {"has no label"}, [&] { open_space(TierStart::resume); });
  EXPECT_TRUE(fs::is_empty(places[0].path()));
  const FoundTier found = look();
  EXPECT_FALSE(found.present);
  EXPECT_FALSE(found.whole);
}

TEST_F(TierSpaceTest, GoesOnFromTheNewestOfTwoPassingCommits) {
  leave_a_commit();
  // A crash between the new manifest and the removal of the one before leaves both.
  fs::copy(manifest(1), folder(0) + "/kept");
  resume(paths());
  {
    const auto store = reopen();
    const BlockStore::Snapshot before = store->snapshot();
    write(*store, ChunkId{0}, 0, 200);
    commit(*store, store->snapshot());
  }
  space.reset();
  fs::rename(folder(0) + "/kept", manifest(1));
  EXPECT_EQ(look().commit, 2u);
  EXPECT_EQ(look().commits.size(), 1u);
  resume(paths());
  ASSERT_EQ(space->commits().size(), 1u);
  EXPECT_EQ(space->commits()[0].commit, 2u);
  EXPECT_FALSE(fs::exists(manifest(1)));
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 0, 200));
}

// A manifest that never got its name, and a file of a store that no commit has.
TEST_F(TierSpaceTest, RemovesWhatACrashCutShort) {
  leave_a_commit();
  places[0].write("terrace-tier/commit-0000000000000002.manifest.new", "TRCEPOCH and then nothing");
  fs::copy(folder(1) + "/records.tier", folder(1) + "/params.tier");
  resume(paths());
  EXPECT_FALSE(fs::exists(manifest(2) + ".new"));
  EXPECT_FALSE(fs::exists(folder(1) + "/params.tier"));
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 0, 100));
}

TEST_F(TierSpaceTest, TellsWhoLooksWhatThereIsAndWhoHasIt) {
  leave_a_commit();
  FoundTier found = look();
  EXPECT_TRUE(found.present);
  EXPECT_TRUE(found.whole) << found.trouble;
  EXPECT_FALSE(found.in_use);
  EXPECT_EQ(found.commit, 1u);
  EXPECT_EQ(found.newest.info, "the words of the caller");
  ASSERT_EQ(found.commits.size(), 1u);
  EXPECT_EQ(found.commits[0].path, manifest());
  EXPECT_EQ(static_cast<unsigned>(fs::status(manifest()).permissions()), 0600u);
  resume(paths());
  EXPECT_TRUE(look().in_use);
  EXPECT_TRUE(look().whole);
  space.reset();
  fs::remove(folder(1) + "/records.tier");
  found = look();
  EXPECT_FALSE(found.whole);
  EXPECT_NE(found.trouble.find("records.tier is missing"), std::string::npos) << found.trouble;
}

TEST_F(TierSpaceTest, IsRefusedToASecondJobWhichChangesNothing) {
  leave_a_commit();
  resume(paths());
  MemoryLog quiet;
  for (const bool discard : {false, true}) {
    const Error error = error_of([&] {
      TierSpace(TierSpaceOptions{.paths = {{places[1].path()}}, .discard_commits = discard}, quiet);
    });
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_NE(error.parts().reason.find("is using it"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 3, 103));
}

TEST_F(TierSpaceTest, DoesNotTakeAUsersFilesForItsOwn) {
  places[0].write("terrace-tier/commit-0000000000000003.manifest", "my notes");
  EXPECT_THROW(open_space(), Error);
  EXPECT_THROW(open_space(TierStart::fresh, true), Error);
  EXPECT_EQ(fs::file_size(manifest(3)), 8u);
  fs::remove(manifest(3));
  for (const char* store : {"records", "params", "frozen", "grads", "acts"}) {
    const std::string name = std::string("terrace-tier/") + store + ".tier";
    const fs::path file = places[0] / name;
    places[0].write(name, "my figures");
    EXPECT_THROW(open_space(TierStart::fresh, true), Error) << store;
    EXPECT_EQ(fs::file_size(file), 10u);
    fs::remove(file);
  }
  places[1].write("terrace-tier/space", "the final frontier");
  EXPECT_THROW(open_space(TierStart::fresh, true), Error);
  EXPECT_EQ(fs::file_size(folder(1) + "/space"), 18u);
  fs::remove(folder(1) + "/space");
  fs::create_symlink(places[0].path(), folder(1) + "/space");
  EXPECT_THROW(open_space(), Error);
  EXPECT_TRUE(fs::is_symlink(folder(1) + "/space"));
}

TEST_F(TierSpaceTest, SaysWhetherACommitThatFailedMayComeBack) {
  open_space();
  const auto store = make_store(options());
  for (uint32_t b = 0; b < 6; ++b) write(*store, ChunkId{0}, b, 100 + b);
  fs::create_directory(manifest() + ".new");  // where it is written
  expect_error(ErrorKind::io, {"cannot write the manifest"}, [&] { commit(*store, store->snapshot()); });
  EXPECT_FALSE(manifest_may_be_there);
  fs::remove(manifest() + ".new");
  fs::create_directory(manifest());  // what it is to be called
  expect_error(ErrorKind::io, {"cannot write the manifest"}, [&] { commit(*store, store->snapshot()); });
  EXPECT_TRUE(manifest_may_be_there);
  fs::remove(manifest());
  EXPECT_EQ(commit(*store, store->snapshot()), 1u);
}

TEST_F(TierSpaceTest, LosesARetainedCommitThatIsDamagedAloudAndGoesOn) {
  open_space();
  {
    const auto store = make_store(options());
    for (uint32_t b = 0; b < 6; ++b) write(*store, ChunkId{0}, b, 100 + b);
    const BlockStore::Snapshot first = store->snapshot();
    space->retain_commit(commit(*store, first));
    write(*store, ChunkId{0}, 0, 200);
    commit(*store, store->snapshot());
    space->keep_files(true);
  }
  space.reset();
  const std::string retained = folder(0) + "/" + tier::commit_file_name({.commit = 1, .retained = true});
  ASSERT_TRUE(fs::exists(retained));
  EXPECT_EQ(look().commits.size(), 2u);
  fs::resize_file(retained, 50);
  EXPECT_TRUE(look().whole);
  resume(paths());
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].text.find("a retained commit is lost"), std::string::npos);
  EXPECT_NE(log.lines()[0].text.find(retained), std::string::npos);
  EXPECT_EQ(space->commits().size(), 1u);
  EXPECT_TRUE(holds(*reopen(), ChunkId{0}, 0, 200));
}

// Somebody's copy that is none.
TEST_F(TierSpaceTest, SaysWhenATierFileHasOtherNamesAndTakesItsPermissionsAway) {
  leave_a_commit();
  fs::create_hard_link(folder(1) + "/records.tier", places[1] / "backup");
  ASSERT_EQ(chmod((folder(1) + "/records.tier").c_str(), 0644), 0);
  resume(paths());
  const auto store = reopen();
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].text.find(folder(1) + "/records.tier has other names"), std::string::npos);
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder(1) + "/records.tier").permissions()), 0600u);
}

TEST_F(TierSpaceTest, GivesASmallDiskTheSlotsThatFitAndRefusesWhatFitsNowhere) {
  if (mount("none", places[1].path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root";
  {
    BlockStoreOptions large = options();
    large.chunk_bytes = {4 * kMiB};
    const auto store = make_store(large);
    EXPECT_LE(fs::file_size(folder(1) + "/records.tier"), kMiB);
    EXPECT_GT(fs::file_size(folder(0) + "/records.tier"), 3 * kMiB);
  }
  space.reset();
  EXPECT_EQ(umount(places[1].path().c_str()), 0);
  for (const ScratchFolder& place : places)
    ASSERT_EQ(mount("none", place.path().c_str(), "tmpfs", 0, "size=1m"), 0);
  open_space();
  BlockStoreOptions large = options();
  large.chunk_bytes = {4 * kMiB};
  expect_error(ErrorKind::capacity, {"\"records\"", folder(0), "bytes"}, [&] { make_store(large); });
  EXPECT_FALSE(fs::exists(folder(0) + "/records.tier"));
  space.reset();
  for (const ScratchFolder& place : places) EXPECT_EQ(umount(place.path().c_str()), 0);
}

// In a forked child the folders are the parent's.
TEST_F(TierSpaceTest, IsLeftAloneByAForkedChild) {
  open_space();
  const auto store = make_store(options());
  const pid_t child = fork();
  if (child == 0) {
    space.reset();
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(folder(0) + "/records.tier"));
  EXPECT_TRUE(fs::exists(folder(1) + "/lock"));
}

}  // namespace
}  // namespace terrace::tier_space_test
