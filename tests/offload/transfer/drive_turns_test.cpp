// Turns of updates on a drive, with processes of their own on the other side.
#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/offload/transfer/drive_turns.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include "offload/commits/epoch_rig.h"
#include "offload/offloader_rig.h"
#include "support/allocation_counter.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTurnNs = 1000;
constexpr uint64_t kLongPatienceNs = 60'000'000'000;

// What two processes see of each other.
struct Shared {
  std::atomic<uint32_t> read_count{0};
  std::array<char, 4096> readers{};
  std::atomic<uint32_t> started{0};
  std::atomic<bool> go{false};
  std::atomic<bool> one_is_done{false};
};

class TurnsOnADrive : public ::testing::Test {
 protected:
  TurnsOnADrive() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
    // The files are there before anybody looks at them.
    const io::DeviceToken token(paths(), options().token);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path() / "locks"))
      if (entry.path().extension() == ".gate") gate_ = entry.path();
  }
  ~TurnsOnADrive() override { munmap(shared_, sizeof(Shared)); }

  DriveTurnOptions options(uint64_t turn_ns = kTurnNs, uint64_t patience_ns = kLongPatienceNs) const {
    return {{folder_.path() / "locks", patience_ns}, turn_ns};
  }
  std::vector<fs::path> paths() const { return {folder_.path()}; }
  DriveTurns make_turns(uint64_t patience_ns = kLongPatienceNs) {
    return {paths(), options(kTurnNs, patience_ns), clock_, watch_, log_};
  }

  static pid_t child(const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      body();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    return pid;
  }
  // A process that takes the drive, when it is told to, and keeps it.
  pid_t holder() {
    return child([this] {
      while (!shared_->go) usleep(100);
      io::DeviceToken token(paths(), options().token);
      if (token.acquire()) ++shared_->started;
      while (true) pause();
    });
  }
  void start_holder() {
    shared_->go = true;
    while (shared_->started == 0) usleep(100);
  }
  static void end(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  static void kill_off(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }

  // Whether another process waits for the drive, and does not only look whether it is free.
  bool is_waited_for() const {
    const int fd = open(gate_.c_str(), O_RDWR | O_CLOEXEC);
    bool locked = true;
    for (int look = 0; look < 5 && locked; ++look) {
      locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
      usleep(200);
    }
    close(fd);
    return locked;
  }
  void await_waiter() const {
    while (!is_waited_for()) usleep(100);
  }
  std::vector<std::string> warnings(const MemoryLog& log) const {
    std::vector<std::string> texts;
    for (const MemoryLog::Line& line : log.lines())
      if (line.level == LogLevel::warning) texts.push_back(line.text);
    return texts;
  }

  void train(char name, uint64_t steps);

  ScratchFolder folder_;
  fs::path gate_;
  Shared* shared_;
  FakeClock clock_;
  StepWatch watch_;
  MemoryLog log_;
};

// Tells of every read before it begins.
class ReadsEngine final : public io::EngineDecorator {
 public:
  ReadsEngine(std::unique_ptr<io::Engine> base, std::function<void()> reads)
      : io::EngineDecorator(std::move(base)), reads_(std::move(reads)) {}
  void submit(std::span<const io::Request> requests) override {
    for (const io::Request& request : requests)
      if (request.kind == io::OpKind::read) reads_();
    base().submit(requests);
  }

 private:
  std::function<void()> reads_;
};

TEST_F(TurnsOnADrive, GoOnWhileNobodyElseWaits) {
  DriveTurns ours = make_turns();
  io::DeviceToken theirs(paths(), options().token);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ours.may_read());
    EXPECT_FALSE(theirs.try_acquire());
    clock_.advance(2 * kTurnNs);
  }
  ours.give_back();
  EXPECT_TRUE(theirs.try_acquire());
  EXPECT_FALSE(ours.may_read());
}

TEST_F(TurnsOnADrive, EndWhenTheirTimeIsOverAndAnotherProcessWaits) {
  DriveTurns ours = make_turns();
  EXPECT_TRUE(ours.may_read());
  const pid_t other = child([this] {
    io::DeviceToken token(paths(), options().token);
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_TRUE(token.acquire());
      while (turn == 0 && !token.wanted()) usleep(100);
      token.release();
    }
  });
  await_waiter();
  EXPECT_TRUE(ours.may_read());
  clock_.advance(kTurnNs - 1);
  EXPECT_TRUE(ours.may_read());
  clock_.advance(1);
  EXPECT_FALSE(ours.may_read());
  EXPECT_FALSE(ours.held());
  ours.wait();
  await_waiter();
  clock_.advance(kTurnNs);
  EXPECT_TRUE(ours.may_read()) << "a turn is one block at least";
  EXPECT_FALSE(ours.may_read());
  end(other);
  EXPECT_TRUE(warnings(log_).empty());
}

TEST_F(TurnsOnADrive, AreNotWaitedForWithoutEnd) {
  const pid_t other = holder();
  start_holder();
  DriveTurns ours = make_turns(1'000'000);
  EXPECT_FALSE(ours.may_read());
  ours.wait();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ours.may_read()) << "and not for long again";
    EXPECT_FALSE(ours.held());
    ours.give_back();
    clock_.advance(kTurnNs);
  }
  kill_off(other);
  EXPECT_TRUE(ours.may_read());
  EXPECT_TRUE(ours.held());
  ASSERT_EQ(warnings(log_).size(), 1u);
  EXPECT_NE(warnings(log_).front().find("updates go on beside it"), std::string::npos);
}

TEST_F(TurnsOnADrive, AreNotTakenWhereTheirFilesCannotBeMade) {
  DriveTurnOptions nowhere = options();
  nowhere.token.folder = folder_.path() / "nowhere" / "below";
  for (int i = 0; i < 2; ++i) {
    DriveTurns turns(paths(), nowhere, clock_, watch_, log_);
    EXPECT_TRUE(turns.may_read());
    EXPECT_FALSE(turns.held());
  }
  ASSERT_EQ(warnings(log_).size(), 1u);
  EXPECT_NE(warnings(log_).front().find("cannot create"), std::string::npos) << warnings(log_).front();
}

// Every read is one of a turn, and waits until the other process wants one.
void TurnsOnADrive::train(char name, uint64_t steps) {
  const io::DeviceToken looks(paths(), options().token);
  Case c{Placement::cpu, Placement::nvme};
  c.engine = io::EngineKind::threads;
  c.drive_turns = options(0);
  c.decorate = [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<ReadsEngine>(std::move(engine), [&] {
      EXPECT_EQ(looks.holder(), static_cast<uint64_t>(getpid())) << "not in a turn of its own";
      while (!shared_->one_is_done && !is_waited_for()) usleep(100);
      shared_->readers[shared_->read_count++ % shared_->readers.size()] = name;
    });
  };
  c.threads = 1;
  Rig rig(c);
  Reference reference(rig.specs, 1);
  for (uint64_t step = 1; step <= steps; ++step) {
    rig.step(step, 1);
    reference.step(step);
  }
  shared_->one_is_done = true;
  expect_same_as_reference(rig, reference);
  for (const std::string& warning : warnings(rig.log))
    EXPECT_EQ(warning.find("updates go on beside it"), std::string::npos);
}

TEST_F(TurnsOnADrive, AlternateBetweenTheUpdatesOfTwoProcesses) {
  const pid_t first = child([this] { train('a', 3); });
  const pid_t second = child([this] { train('b', 3); });
  end(first);
  end(second);
  const uint32_t reads = shared_->read_count;
  ASSERT_GT(reads, 20u);
  ASSERT_LE(reads, shared_->readers.size());
  for (size_t i = 1; i < reads; ++i) EXPECT_NE(shared_->readers[i], shared_->readers[i - 1]) << i;
}

TEST_F(TurnsOnADrive, AreSeenToBeWaitedForAndFreeWhenTheirHolderDies) {
  const pid_t other = holder();
  Case c{Placement::cpu, Placement::nvme};
  c.drive_turns = options();
  c.threads = 1;
  Rig rig(c);
  Reference reference(rig.specs, 1);
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
  EXPECT_EQ(rig.offloader->counters().turn_wait_ns, 0u);
  start_holder();
  std::string seen;
  std::thread onlooker([&] {
    for (int i = 0; i < 30'000 && seen.find("turn") == std::string::npos; ++i) {
      if (const std::optional<uint64_t> wait = rig.offloader->watch().current())
        seen = rig.offloader->watch().describe(*wait).value_or("");
      usleep(1000);
    }
    kill_off(other);
  });
  rig.offloader->begin_step();
  toy::run_micro_batch(*rig.offloader, rig.specs, 0);
  rig.offloader->end_micro_batch();
  const std::vector<OptimizerSettings> groups = toy::groups();
  const uint64_t before = testing::allocations_of_this_thread();
  rig.offloader->update({groups, 4, 0});
  EXPECT_EQ(testing::allocations_of_this_thread() - before, 0u);
  onlooker.join();
  EXPECT_EQ(seen, fmt::format("the update waits for a turn on the drive (nvme): {}, held by process {}",
                              rig.folder.path().string(), other));
  EXPECT_GT(rig.offloader->counters().turn_wait_ns, 0u);
  for (uint64_t step = 1; step <= 4; ++step) reference.step(step);
  expect_same_as_reference(rig, reference);
  EXPECT_TRUE(warnings(rig.log).empty());
}

TEST_F(TurnsOnADrive, ChangeNoBit) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    for (const bool tight : {true, false}) {
      for (const uint32_t accumulation : {1u, 3u}) {
        Case c{parameters, Placement::nvme, DataType::bf16, accumulation};
        c.tight = tight;
        c.drive_turns = options(0);
        Rig rig(c);
        Reference reference(rig.specs, accumulation);
        for (uint64_t step = 1; step <= 3; ++step) {
          rig.step(step, accumulation);
          reference.step(step);
        }
        expect_same_as_reference(rig, reference);
      }
    }
  }
}

// The commit writes nothing until the update waits for it.
TEST_F(TurnsOnADrive, AreGivenBackWhileTheUpdateWaitsForACommit) {
  io::DeviceToken theirs(paths(), options().token);
  for (const uint32_t quarters : {1u, 2u, 3u}) {
    CommitGate gate;
    EpochCase c{.cached_quarters = quarters};
    c.drive_turns = options();
    std::atomic<uint32_t> free_count{0};
    std::atomic<uint32_t> wait_count{0};
    c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) {
      return std::make_unique<GateEngine>(std::move(engine), [&] {
        const uint32_t seen = gate.waits_seen();
        gate();
        if (gate.waits_seen() == seen) return;
        ++wait_count;
        free_count += theirs.try_acquire() ? 1 : 0;
        theirs.release();
      });
    });
    const ScratchFolder folder;
    EpochRig rig(c, folder.path());
    train_past_commit(rig, gate);
    EXPECT_GT(wait_count.load(), 0u);
    EXPECT_EQ(free_count.load(), wait_count.load()) << quarters;
  }
}

}  // namespace
}  // namespace terrace
