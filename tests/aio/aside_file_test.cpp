#include <terrace/aio/aside_file.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string_view>

#include "aio/aio_support.h"
#include "support/expect_error.h"

namespace terrace::io::aside_file_test {
namespace {

using testing::expect_error;

constexpr std::string_view kText = "written aside";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text_at(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, 1000);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
AsideOptions for_the_user() {
  AsideOptions options;
  options.for_the_user = true;
  options.what = "the report";
  options.advice = "name another file";
  return options;
}
uint32_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(AsideFile, IsFoundWholeOrNotAtAll) {
  const ScratchFolder folder;
  write_bytes(folder / "file", bytes_of("earlier"));
  {
    AsideFile file(folder / "file", {});
    file.write(0, bytes_of(kText.substr(0, 7)));
    EXPECT_EQ(text_at(folder / "file"), "earlier");
    file.write(7, bytes_of(kText.substr(7)));
    file.publish();
    EXPECT_EQ(text_at(folder / "file"), kText);
  }
  EXPECT_EQ(text_at(folder / "file"), kText);
  EXPECT_FALSE(std::filesystem::exists(folder / "file.new"));
}

TEST(AsideFile, IsGoneWhereItIsNotPublished) {
  const ScratchFolder folder;
  {
    AsideFile file(folder / "file", {});
    file.write(0, bytes_of(kText));
    EXPECT_TRUE(std::filesystem::exists(folder / "file.new"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AsideFile, TakesTheModeOfWhatItReplacesOnlyForTheUser) {
  const ScratchFolder folder;
  const mode_t before = umask(022);
  AsideFile(folder / "own", {}).publish();
  AsideFile(folder / "given away", for_the_user()).publish_undurably();
  EXPECT_EQ(mode_of(folder / "own"), 0600u);
  EXPECT_EQ(mode_of(folder / "given away"), 0644u);
  std::filesystem::permissions(folder / "given away", std::filesystem::perms(0640));
  AsideFile(folder / "given away", for_the_user()).publish_undurably();
  EXPECT_EQ(mode_of(folder / "given away"), 0640u);
  umask(before);
}

TEST(AsideFile, OfTheUserReplacesNothingButRegularFiles) {
  const ScratchFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::io, {"cannot write the report", "pipe", "name another file"},
               [&] { AsideFile(folder / "pipe", for_the_user()); });
  expect_error(ErrorKind::io, {"cannot write the report", "EISDIR", "name another file"},
               [&] { AsideFile(folder.path(), for_the_user()); });
  expect_error(ErrorKind::io, {"cannot write the report", "ENOENT", "name another file"},
               [&] { AsideFile(folder / "nowhere/file", for_the_user()); });
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(AsideFile, AsksForRoomWhereTheFileMayNotGrow) {
  const ScratchFolder folder;
  AsideFile file(folder / "file", for_the_user());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{4, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  expect_error(ErrorKind::capacity,
               {"cannot write the report", "EFBIG", "raise the largest size of a file", "ulimit -f"},
               [&] { file.write(0, bytes_of(kText)); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
}

TEST(AsideFile, LeavesThoseOfOtherSuffixesAlone) {
  const ScratchFolder folder;
  AsideFile one(folder / "file", {.suffix = ".1", .what = "one", .advice = "", .events = nullptr});
  AsideFile other(folder / "file", {.suffix = ".2", .what = "other", .advice = "", .events = nullptr});
  one.write(0, bytes_of("one"));
  other.write(0, bytes_of("other"));
  one.publish();
  EXPECT_EQ(text_at(folder / "file"), "one");
  other.publish();
  EXPECT_EQ(text_at(folder / "file"), "other");
}

}  // namespace
}  // namespace terrace::io::aside_file_test
