#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aio/aio_support.h"

namespace terrace::io::file_test {
namespace {

constexpr FileOptions kNew{.access = FileAccess::read_write, .create = true};

template <typename Callable>
ErrorParts parts_of(Callable&& callable, ErrorKind kind = ErrorKind::io) {
  try {
    callable();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.parts();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
// One word an event, and the last part of the path.
class EventWords : public FileEvents {
 public:
  void folder_created(const Path& path) override { say("folder", path); }
  void created(const Path& path) override { say("create", path); }
  void resized(const Path& path, uint64_t bytes) override { say("resize " + std::to_string(bytes), path); }
  void written(const Path& path, uint64_t offset, std::span<const std::byte> bytes) override {
    say("write " + std::to_string(offset) + "+" + std::to_string(bytes.size()), path);
  }
  void sync_begins(const Path& path) override { say("sync...", path); }
  void synced(const Path& path) override { say("synced", path); }
  void renamed(const Path& from, const Path& to) override {
    say("rename", from);
    say("to", to);
  }
  void removed(const Path& path) override { say("remove", path); }
  void folder_synced(const Path&) override { words.emplace_back("folder synced"); }
  std::vector<std::string> words;

 private:
  void say(const std::string& word, const Path& path) {
    words.push_back(word + " " + path.filename().string());
  }
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(File, CreatesForItsUserOnlyAndNeverOverAnother) {
  ScratchFolder folder;
  umask(0);
  const File file = File::open(folder / "tier", kNew);
  struct stat status;
  ASSERT_EQ(fstat(file.fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  EXPECT_EQ(fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  const ErrorParts parts = parts_of([&] { File::open(folder / "tier", kNew); });
  EXPECT_EQ(parts.subject, (folder / "tier").string());
  EXPECT_EQ(parts.reason, "File exists (EEXIST)");
  EXPECT_FALSE(parts.advice.empty());
}

TEST(File, SaysWhatIsMissing) {
  ScratchFolder folder;
  EXPECT_EQ(parts_of([&] { File::open(folder / "absent", {}); }).reason,
            "No such file or directory (ENOENT)");
  EXPECT_EQ(parts_of([&] { File::open(folder / "absent/tier", kNew); }).advice, "create its folder first");
}

TEST(File, DoesNotFollowALinkUnlessTold) {
  ScratchFolder folder;
  write_bytes(folder / "real", bytes_of("x"));
  std::filesystem::create_symlink(folder / "real", folder / "link");
  EXPECT_NE(parts_of([&] { File::open(folder / "link", {}); }).advice.in(Door::cpp).find("symbolic link"),
            std::string::npos);
  EXPECT_EQ(File::open(folder / "link", {.no_follow = false}).size_bytes(), 1u);
}

TEST(File, RefusesAPipeWithoutWaitingForItsOtherEnd) {
  ScratchFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(parts_of([&] { File::open(folder / "pipe", {}); }).reason, "it is not a regular file");
  EXPECT_EQ(parts_of([&] { File::open(folder / ".", {}); }).reason, "it is not a regular file");
}

TEST(File, LeavesNoNonblockingFlagThatIoUringWouldObey) {
  ScratchFolder folder;
  for (const bool direct : {false, true}) {
    const File file = File::open(folder / (direct ? "direct" : "buffered"),
                                 {.access = FileAccess::read_write, .create = true, .direct = direct});
    EXPECT_EQ(fcntl(file.fd(), F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(File, ClosesItsDescriptorOnceHoweverItMoves) {
  ScratchFolder folder;
  const size_t before = open_descriptors();
  {
    File first = File::open(folder / "a", kNew);
    File second = File::open(folder / "b", kNew);
    EXPECT_EQ(open_descriptors(), before + 2);
    const int fd = second.fd();
    first = std::move(second);
    EXPECT_EQ(first.fd(), fd);
    EXPECT_EQ(first.path(), folder / "b");
    EXPECT_EQ(open_descriptors(), before + 1);
    const File third = std::move(first);
    EXPECT_EQ(third.fd(), fd);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_THROW(File::open(folder / ".", {}), Error);
  EXPECT_EQ(open_descriptors(), before) << "a refused file is closed as well";
}

TEST(File, GoesPastThePageCacheWithTheAlignmentOfItsFileSystem) {
  ScratchFolder folder;
  const File file =
      File::open(folder / "direct", {.access = FileAccess::read_write, .create = true, .direct = true});
  if (!file.direct()) {
    EXPECT_FALSE(file.direct_refusal().empty());
    GTEST_SKIP() << "no direct I/O in the scratch folder: " << file.direct_refusal();
  }
  EXPECT_EQ(fcntl(file.fd(), F_GETFL) & O_DIRECT, O_DIRECT);
  EXPECT_TRUE(file.direct_refusal().empty());
  const uint64_t alignment = file.alignment_bytes();
  EXPECT_GE(alignment, 1u);
  EXPECT_EQ(alignment & (alignment - 1), 0u);
  const Bytes bytes(2 * alignment);
  EXPECT_EQ(pwrite(file.fd(), bytes.data(), alignment, static_cast<off_t>(alignment)),
            static_cast<ssize_t>(alignment));
}

TEST(File, WorksBufferedAndSaysWhyWhereDirectIoIsRefused) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm here";
  ScratchFolder folder("/dev/shm");
  const File file =
      File::open(folder / "tmpfs", {.access = FileAccess::read_write, .create = true, .direct = true});
  EXPECT_FALSE(file.direct());
  EXPECT_FALSE(file.direct_refusal().empty());
  EXPECT_EQ(file.alignment_bytes(), 1u);
  EXPECT_EQ(fcntl(file.fd(), F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(pwrite(file.fd(), "abc", 3, 1), 3);
  EXPECT_EQ(file.size_bytes(), 4u);
}

TEST(File, ResizesSparselyAndReservesForReal) {
  ScratchFolder folder;
  File file = File::open(folder / "tier", kNew);
  const auto taken = [&] {
    struct stat status;
    EXPECT_EQ(fstat(file.fd(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  file.resize(kGiB);
  EXPECT_EQ(file.size_bytes(), kGiB);
  EXPECT_LT(taken(), kMiB);
  file.resize(kMiB);
  if (!file.preallocate(8 * kMiB)) GTEST_SKIP() << "this file system cannot reserve space";
  EXPECT_EQ(file.size_bytes(), 8 * kMiB);
  EXPECT_GE(taken(), 8 * kMiB);
  EXPECT_TRUE(file.preallocate(kMiB));
  EXPECT_EQ(file.size_bytes(), 8 * kMiB) << "reserving never shrinks";
}

TEST(File, RefusesToReserveMoreThanIsFreeAndSaysHowMuchThatIs) {
  ScratchFolder folder;
  File file = File::open(folder / "tier", kNew);
  file.resize(5);
  const uint64_t wanted = free_bytes_at(folder / "tier") + 64 * kGiB;
  const ErrorParts parts = parts_of([&] { file.preallocate(wanted); }, ErrorKind::capacity);
  EXPECT_EQ(parts.subject, (folder / "tier").string());
  EXPECT_EQ(parts.reason, "No space left on device (ENOSPC)");
  EXPECT_NE(parts.advice.in(Door::cpp).find(" free and "), std::string::npos) << parts.advice.in(Door::cpp);
  EXPECT_EQ(file.size_bytes(), 5u);
}

TEST(File, LocksOutEveryOtherOpenFileUntilItCloses) {
  ScratchFolder folder;
  {
    File first = File::open(folder / "tier", kNew);
    EXPECT_TRUE(first.try_lock());
    EXPECT_TRUE(first.try_lock()) << "it has it already";
    File second = File::open(folder / "tier", {.access = FileAccess::read_write});
    EXPECT_FALSE(second.try_lock());
    const pid_t child = fork();
    if (child == 0) {
      const int fd = ::open((folder / "tier").c_str(), O_RDWR);
      File third = File::open(folder / "tier", {.access = FileAccess::read_write});
      _exit(fd >= 0 && !third.try_lock() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "another process is locked out as well";
    EXPECT_FALSE(second.try_lock());
  }
  File later = File::open(folder / "tier", {.access = FileAccess::read_write});
  EXPECT_TRUE(later.try_lock());
}

TEST(File, SyncsAndReportsWhatCannotBe) {
  ScratchFolder folder;
  File file = File::open(folder / "tier", kNew);
  EXPECT_EQ(pwrite(file.fd(), "abc", 3, 0), 3);
  EXPECT_NO_THROW(file.sync());
  File read_only = File::open(folder / "tier", {});
  EXPECT_EQ(parts_of([&] { read_only.resize(0); }).subject, (folder / "tier").string());
}

TEST(DescribeFailure, NamesPathOffsetBytesAndReason) {
  Request request{OpKind::write, 3, 4096, nullptr, 8192, nullptr, nullptr, 0};
  const Error full = describe_failure(request, {ENOSPC, 512, 0}, "/data/tier.0");
  EXPECT_EQ(full.kind(), ErrorKind::io);
  EXPECT_STREQ(full.what(),
               "cannot write 8192 bytes at offset 4096 to \"/data/tier.0\": No space left on device "
               "(ENOSPC), after 512 "
               "bytes\n  free space on its file system");
  request.kind = OpKind::read;
  const Error ended = describe_failure(request, {kEndOfFile, 100, 0}, "/data/tier.0");
  EXPECT_EQ(ended.parts().reason, "the file ends, after 100 bytes");
  EXPECT_EQ(ended.parts().what_failed, "cannot read 8192 bytes at offset 4096 of");
}

TEST(SmallFile, IsReplacedWholeAndLeavesNothingAside) {
  ScratchFolder folder;
  write_file_atomically(folder / "manifest", bytes_of("first version, a long one"));
  EXPECT_EQ(text_of(read_whole_file(folder / "manifest", kMiB)), "first version, a long one");
  write_file_atomically(folder / "manifest", bytes_of("second"));
  EXPECT_EQ(text_of(read_whole_file(folder / "manifest", kMiB)), "second");
  write_file_atomically(folder / "manifest", {});
  EXPECT_EQ(text_of(read_whole_file(folder / "manifest", kMiB)), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "manifest.new"));
}

TEST(SmallFile, IsWrittenOverWhatADeadProcessLeftAside) {
  ScratchFolder folder;
  write_bytes(folder / "precious", bytes_of("keep"));
  std::filesystem::create_symlink(folder / "precious", folder / "manifest.new");
  write_file_atomically(folder / "manifest", bytes_of("new"));
  EXPECT_EQ(text_of(read_whole_file(folder / "manifest", 10)), "new");
  EXPECT_EQ(read_whole_text(folder / "manifest", 3), "new");
  EXPECT_EQ(text_of(read_whole_file(folder / "precious", 10)), "keep")
      << "a planted link is not written through";
}

TEST(SmallFile, AFailedReplacementKeepsTheOldOneAndNothingAside) {
  ScratchFolder folder;
  std::filesystem::create_directories(folder / "manifest/inside");
  const ErrorParts parts = parts_of([&] { write_file_atomically(folder / "manifest", bytes_of("new")); });
  EXPECT_EQ(parts.subject, (folder / "manifest").string());
  EXPECT_TRUE(std::filesystem::is_directory(folder / "manifest/inside"));
  EXPECT_FALSE(std::filesystem::exists(folder / "manifest.new"));
}

TEST(SmallFile, TellsEveryChangeOfTheDiskInItsOrder) {
  ScratchFolder folder;
  write_bytes(folder / "manifest.new", bytes_of("left by a dead process"));
  EventWords events;
  write_file_atomically(folder / "manifest", bytes_of("12345"), &events);
  EXPECT_THAT(events.words,
              ::testing::ElementsAre("remove manifest.new", "create manifest.new", "write 0+5 manifest.new",
                                     "sync... manifest.new", "synced manifest.new", "rename manifest.new",
                                     "to manifest", "folder synced"));
  std::filesystem::create_directories(folder / "taken/inside");
  events.words.clear();
  EXPECT_THROW(write_file_atomically(folder / "taken", {}, &events), Error);
  EXPECT_EQ(events.words.back(), "remove taken.new");
}

TEST(File, TellsItsCreationSizeAndSyncs) {
  ScratchFolder folder;
  EventWords events;
  FileOptions options = kNew;
  options.events = &events;
  File first = File::open(folder / "tier", options);
  File file = std::move(first);
  file.preallocate(8192);
  file.preallocate(4096);  // long enough already
  file.resize(100);
  file.sync();
  EXPECT_THAT(events.words, ::testing::ElementsAre("create tier", "resize 8192 tier", "resize 100 tier",
                                                   "sync... tier", "synced tier"));
}

TEST(SmallFile, OfTheCurrentFolderNeedsNoFolderInItsName) {
  ScratchFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / ".");
  EXPECT_NO_THROW(write_file_atomically("bare", bytes_of("x")));
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::exists(folder / "bare"));
}

TEST(SmallFile, IsNotReadWhenItIsLargerThanItCanBe) {
  ScratchFolder folder;
  write_bytes(folder / "big", bytes_of("12345"));
  EXPECT_EQ(read_whole_file(folder / "big", 5).size(), 5u);
  EXPECT_NE(parts_of([&] { read_whole_file(folder / "big", 4); }).reason.find("5 B"), std::string::npos);
}

}  // namespace
}  // namespace terrace::io::file_test
