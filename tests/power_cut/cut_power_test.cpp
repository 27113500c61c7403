// The simulation itself: what it lets a careful writer keep, and that it catches a careless one.
#include "power_cut/cut_power.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include <terrace/aio/file.h>

#include "support/scratch_folder.h"

namespace terrace::power_cut::cut_power_test {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The text of the file, or "absent".
std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "absent";
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What "name" may hold after a cut, by the last mark.
std::map<std::string, std::set<std::string>> outcomes(const std::vector<DiskEvent>& log) {
  std::map<std::string, std::set<std::string>> found;
  for_each_cut(log, 1, 300, [&](const CutCase& cut, const CutDisk& disk) {
    found[cut.marked].insert(text_in(disk() / "name"));
  });
  return found;
}

// Writes "name" twice with `write` and returns what may be left.
template <typename Write>
std::map<std::string, std::set<std::string>> outcomes_of(Write&& write) {
  const ScratchFolder folder;
  DiskLog log(folder.path());
  write(folder.path() / "name", "first");
  log.mark("first");
  write(folder.path() / "name", "the second");
  log.mark("second");
  return outcomes(log.stop());
}

using ::testing::UnorderedElementsAre;

TEST(CutPower, AFileThatIsReplacedAtomicallyIsOldOrNew) {
  const auto found = outcomes_of(
      [](const fs::path& path, const std::string& text) { io::write_file_atomically(path, bytes_of(text)); });
  EXPECT_THAT(found.at(""), UnorderedElementsAre("absent", "first"));
  EXPECT_THAT(found.at("first"), UnorderedElementsAre("first", "the second"));
  EXPECT_THAT(found.at("second"), UnorderedElementsAre("the second"));
}

// The two syncs, each left out.
void replace_carelessly(const fs::path& path, const std::string& text, bool sync_file, bool sync_folder) {
  const fs::path aside = path.string() + ".new";
  {
    io::File file = io::File::open(aside, {.access = io::FileAccess::write, .create = true});
    ASSERT_EQ(pwrite(file.fd(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    if (sync_file) file.sync();
  }
  fs::rename(aside, path);
  if (sync_folder) io::sync_folder(path.parent_path());
}

TEST(CutPower, ARenameBeforeTheBytesAreThereIsCaught) {
  const auto found = outcomes_of(
      [](const fs::path& path, const std::string& text) { replace_carelessly(path, text, false, true); });
  EXPECT_TRUE(found.at("second").contains(""));
  EXPECT_TRUE(found.at("second").contains("the second"));
}

TEST(CutPower, ARenameThatNobodySyncedIsNotDurable) {
  const auto found = outcomes_of(
      [](const fs::path& path, const std::string& text) { replace_carelessly(path, text, true, false); });
  EXPECT_THAT(found.at("second"), UnorderedElementsAre("absent", "first", "the second"));
}

TEST(CutPower, AFolderThatNobodySyncedTakesEverythingWithIt) {
  for (const bool sync_parent : {false, true}) {
    const ScratchFolder folder;
    DiskLog log(folder.path());
    fs::create_directory(folder.path() / "below");
    if (sync_parent) io::sync_folder(folder.path());
    io::write_file_atomically(folder.path() / "below/name", bytes_of("text"));
    log.mark("done");
    std::set<std::string> found;
    for_each_cut(log.stop(), 1, 100, [&](const CutCase& cut, const CutDisk& disk) {
      if (cut.marked == "done") found.insert(text_in(disk() / "below/name"));
    });
    EXPECT_EQ(found.contains("absent"), !sync_parent);
    EXPECT_TRUE(found.contains("text"));
  }
}

TEST(CutPower, WritesThatNoSyncCoversComeInAnyOrderAndInPart) {
  const ScratchFolder folder;
  DiskLog log(folder.path());
  {
    const io::File made =
        io::File::open(folder.path() / "name", {.access = io::FileAccess::write, .create = true});
    io::sync_folder(folder.path());
    const std::string old(1024, 'o');
    ASSERT_EQ(pwrite(made.fd(), old.data(), old.size(), 0), 1024);
    io::File file = io::File::open(folder.path() / "name", {.access = io::FileAccess::write});
    file.sync();
    log.mark("old");
    for (const char letter : {'a', 'b'}) {
      const std::string text(512, letter);
      ASSERT_EQ(pwrite(file.fd(), text.data(), text.size(), letter == 'a' ? 0 : 512), 512);
    }
    file.resize(600);
  }
  const std::string o(512, 'o'), a(512, 'a'), b(512, 'b');
  const auto cut = [](const std::string& text) { return text.substr(0, 600); };
  EXPECT_THAT(outcomes(log.stop()).at("old"), UnorderedElementsAre(o + o, a + o, o + b, a + b, cut(o + o),
                                                                   cut(a + o), cut(o + b), cut(a + b)));
}

TEST(CutPower, ASyncCoversNothingThatEndedAfterItBegan) {
  const std::vector<std::byte> text(4, std::byte{'x'});
  const std::vector<DiskEvent> log = {
      {DiskOp::file_made, "name", {}},
      {DiskOp::folder_synced, ".", {}},
      {DiskOp::write_begins, "name", {}, 0, 4, 1, text},
      {DiskOp::sync_begins, "name", {}, 0, 0, 2},
      {DiskOp::write_ends, "name", {}, 0, 4, 1},
      {DiskOp::sync_ends, "name", {}, 0, 0, 2},
      {DiskOp::marked, "synced", {}},
  };
  EXPECT_TRUE(outcomes(log).at("synced").contains(""));
}

}  // namespace
}  // namespace terrace::power_cut::cut_power_test
