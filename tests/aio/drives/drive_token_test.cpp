// The token of a drive among processes of their own.
#include <terrace/aio/drives/drive_token.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <vector>

#include "aio/aio_support.h"

namespace terrace::io::drive_token_test {
namespace {

namespace fs = std::filesystem;

// What two processes see of each other.
struct Shared {
  std::atomic<uint32_t> started{0};
};

class DriveTokens : public ::testing::Test {
 protected:
  DriveTokens() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
  }
  ~DriveTokens() override { munmap(shared_, sizeof(Shared)); }

  DriveTokenOptions options(uint64_t patience_ns = 0) const {
    return {folder_.path() / "locks", patience_ns};
  }
  std::vector<fs::path> paths() const { return {folder_.path()}; }

  static pid_t child(const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      body();
      _exit(0);
    }
    return pid;
  }
  static void end(pid_t pid, int by_signal = 0) {
    if (by_signal != 0) kill(pid, by_signal);
    int status = 0;
    waitpid(pid, &status, 0);
    if (by_signal == 0) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }

  ScratchFolder folder_;
  Shared* shared_;
};

TEST_F(DriveTokens, ExcludeOthersUntilTheyAreReleased) {
  DriveToken ours(paths(), options());
  DriveToken theirs(paths(), options());
  ASSERT_TRUE(ours.usable()) << ours.refusal();
  EXPECT_TRUE(ours.acquire());
  EXPECT_TRUE(ours.held());
  EXPECT_FALSE(theirs.acquire());
  EXPECT_FALSE(theirs.held());
  ours.release();
  EXPECT_TRUE(theirs.acquire());
  EXPECT_FALSE(ours.acquire());
}

TEST_F(DriveTokens, GoWithTheProcessThatDies) {
  const pid_t holder = child([&] {
    DriveToken token(paths(), options());
    if (token.acquire()) ++shared_->started;
    while (true) pause();
  });
  while (shared_->started == 0) usleep(100);
  DriveToken token(paths(), options());
  EXPECT_FALSE(token.acquire());
  end(holder, SIGKILL);
  EXPECT_TRUE(token.acquire());
}

TEST_F(DriveTokens, AreNotWaitedForWithoutEnd) {
  const pid_t holder = child([&] {
    DriveToken token(paths(), options());
    if (token.acquire()) ++shared_->started;
    raise(SIGSTOP);
  });
  while (shared_->started == 0) usleep(100);
  DriveToken token(paths(), options(20'000'000));
  EXPECT_FALSE(token.acquire());
  EXPECT_FALSE(token.held());
  token.release();  // of nothing
  end(holder, SIGKILL);
  EXPECT_TRUE(token.acquire());
}

TEST_F(DriveTokens, LieInAPrivateFolderOrAreNotUsed) {
  { const DriveToken token(paths(), options()); }
  struct stat status {};
  ASSERT_EQ(stat((folder_.path() / "locks").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  fs::permissions(folder_.path() / "locks", fs::perms(0777));
  DriveToken refused(paths(), options());
  EXPECT_FALSE(refused.usable());
  EXPECT_NE(refused.refusal().find("not a folder of this user's alone"), std::string::npos);
  EXPECT_FALSE(refused.acquire());
  fs::create_symlink(folder_.path(), folder_.path() / "link");
  EXPECT_FALSE(DriveToken(paths(), {.folder = folder_.path() / "link"}).usable());
  EXPECT_FALSE(DriveToken(paths(), {.folder = folder_.path() / "nowhere" / "below"}).usable());
}

TEST_F(DriveTokens, OfSeveralDrivesAreTakenAllOrNone) {
  const fs::path memory = "/dev/shm";  // a file system without a drive counts as one
  if (!fs::is_directory(memory)) GTEST_SKIP() << "there is no /dev/shm";
  DriveToken disk(paths(), options());
  DriveToken shm(std::vector<fs::path>{memory}, options());
  DriveToken both(std::vector<fs::path>{folder_.path(), memory}, options());
  for (DriveToken* one : {&disk, &shm}) {
    DriveToken& other = one == &disk ? shm : disk;
    EXPECT_TRUE(one->acquire());
    EXPECT_FALSE(both.acquire());
    EXPECT_TRUE(other.acquire());  // nothing of it stayed behind
    one->release();
    other.release();
  }
  EXPECT_TRUE(both.acquire());
  EXPECT_FALSE(disk.acquire());
  EXPECT_FALSE(shm.acquire());
}

TEST_F(DriveTokens, OfOneDriveAreOneHoweverManyFoldersItHas) {
  fs::create_directory(folder_.path() / "other");
  const std::vector<fs::path> both{folder_.path(), folder_.path() / "other"};
  DriveToken ours(both, options());
  DriveToken theirs(paths(), options());
  EXPECT_TRUE(ours.acquire());
  EXPECT_FALSE(theirs.acquire());
}

}  // namespace
}  // namespace terrace::io::drive_token_test
