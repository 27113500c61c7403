// Turns on a drive among processes of their own.
#include <terrace/aio/drives/device_token.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <vector>

#include "aio/aio_support.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

// What two processes see of each other.
struct Shared {
  std::atomic<uint32_t> turn_count{0};
  std::array<char, 64> turns{};
  std::atomic<uint32_t> started{0};
  std::atomic<bool> one_is_done{false};
};

class DeviceTokens : public ::testing::Test {
 protected:
  DeviceTokens() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
  }
  ~DeviceTokens() override { munmap(shared_, sizeof(Shared)); }

  DeviceTokenOptions options(uint64_t patience_ns = 60'000'000'000) const {
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

  // Takes turns, each until the other process wants one.
  void take_turns(char name, int count) {
    DeviceToken token(paths(), options());
    ++shared_->started;
    while (shared_->started < 2) usleep(100);
    for (int i = 0; i < count; ++i) {
      if (!token.acquire()) _exit(1);
      shared_->turns[shared_->turn_count++] = name;
      while (!token.wanted() && !shared_->one_is_done) usleep(100);
      if (i + 1 == count) shared_->one_is_done = true;
      token.release();
    }
  }

  ScratchFolder folder_;
  Shared* shared_;
};

TEST_F(DeviceTokens, AlternateBetweenTwoProcesses) {
  constexpr int kTurns = 20;
  const pid_t first = child([&] { take_turns('a', kTurns); });
  const pid_t second = child([&] { take_turns('b', kTurns); });
  end(first);
  end(second);
  ASSERT_EQ(shared_->turn_count, 2u * kTurns);
  for (size_t i = 1; i < 2 * kTurns - 1; ++i) EXPECT_NE(shared_->turns[i], shared_->turns[i - 1]) << i;
}

TEST_F(DeviceTokens, ExcludeOthersUntilTheyAreReleased) {
  DeviceToken ours(paths(), options());
  DeviceToken theirs(paths(), options());
  ASSERT_TRUE(ours.usable()) << ours.refusal();
  EXPECT_TRUE(ours.try_acquire());
  EXPECT_TRUE(ours.held());
  EXPECT_FALSE(ours.wanted());
  EXPECT_FALSE(theirs.try_acquire());
  EXPECT_FALSE(theirs.held());
  ours.release();
  EXPECT_TRUE(theirs.try_acquire());
  EXPECT_FALSE(ours.try_acquire());
}

TEST_F(DeviceTokens, GoWithTheProcessThatDies) {
  const pid_t holder = child([&] {
    DeviceToken token(paths(), options());
    if (token.acquire()) ++shared_->started;
    while (true) pause();
  });
  while (shared_->started == 0) usleep(100);
  DeviceToken token(paths(), options());
  EXPECT_FALSE(token.try_acquire());
  end(holder, SIGKILL);
  EXPECT_TRUE(token.try_acquire());
}

TEST_F(DeviceTokens, AreNotWaitedForWithoutEnd) {
  const pid_t holder = child([&] {
    DeviceToken token(paths(), options());
    if (token.acquire()) ++shared_->started;
    raise(SIGSTOP);
  });
  while (shared_->started == 0) usleep(100);
  DeviceToken token(paths(), options(20'000'000));
  EXPECT_FALSE(token.acquire());
  EXPECT_FALSE(token.held());
  token.release();  // of nothing
  end(holder, SIGKILL);
  EXPECT_TRUE(token.acquire());
}

TEST_F(DeviceTokens, LieInAPrivateFolderOrAreNotUsed) {
  { const DeviceToken token(paths(), options()); }
  struct stat status {};
  ASSERT_EQ(stat((folder_.path() / "locks").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  fs::permissions(folder_.path() / "locks", fs::perms(0777));
  DeviceToken refused(paths(), options());
  EXPECT_FALSE(refused.usable());
  EXPECT_NE(refused.refusal().find("not a folder of this user's alone"), std::string::npos);
  EXPECT_FALSE(refused.acquire());
  EXPECT_FALSE(refused.wanted());
  fs::create_symlink(folder_.path(), folder_.path() / "link");
  EXPECT_FALSE(DeviceToken(paths(), {.folder = folder_.path() / "link"}).usable());
  EXPECT_FALSE(DeviceToken(paths(), {.folder = folder_.path() / "nowhere" / "below"}).usable());
}

TEST_F(DeviceTokens, OfSeveralDrivesAreTakenAllOrNone) {
  const fs::path memory = "/dev/shm";  // a file system without a drive counts as one
  if (!fs::is_directory(memory)) GTEST_SKIP() << "there is no /dev/shm";
  DeviceToken disk(paths(), options());
  DeviceToken shm(std::vector<fs::path>{memory}, options());
  DeviceToken both(std::vector<fs::path>{folder_.path(), memory}, options());
  for (DeviceToken* one : {&disk, &shm}) {
    DeviceToken& other = one == &disk ? shm : disk;
    EXPECT_TRUE(one->try_acquire());
    EXPECT_FALSE(both.try_acquire());
    EXPECT_TRUE(other.try_acquire());  // nothing of it stayed behind
    one->release();
    other.release();
  }
  EXPECT_TRUE(both.try_acquire());
  EXPECT_FALSE(disk.try_acquire());
  EXPECT_FALSE(shm.try_acquire());
}

TEST_F(DeviceTokens, OfOneDriveAreOneHoweverManyFoldersItHas) {
  fs::create_directory(folder_.path() / "other");
  const std::vector<fs::path> both{folder_.path(), folder_.path() / "other"};
  DeviceToken ours(both, options());
  DeviceToken theirs(paths(), options());
  EXPECT_TRUE(ours.acquire());
  EXPECT_FALSE(theirs.try_acquire());
}

}  // namespace
}  // namespace terrace::io
