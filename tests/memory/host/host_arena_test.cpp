#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/host/machine.h>

#include "os_memory.h"
#include "support/sanitized.h"

namespace terrace::host_arena_test {
namespace {

TEST(HostArena, CountsItsBudgetToThePage) {
  MemoryLog log;
  HostArena arena({.budget_bytes = 100 * 4096 + 4095, .lock_pages = false}, log);
  EXPECT_EQ(arena.budget_bytes(), 100u * 4096);
  const std::span<std::byte> first = arena.take(1, "staging");
  const std::span<std::byte> second = arena.take(90 * 4096, "records");
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(second.size(), 90u * 4096);
  EXPECT_EQ(second.data(), first.data() + 4096);
  EXPECT_EQ(arena.used_bytes(), 91u * 4096);
  try {
    arena.take(9 * 4096 + 1, "the ring");
    FAIL() << "the budget was exceeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_EQ(error.parts().subject, "the ring");
    EXPECT_NE(error.parts().reason.find("36865 bytes"), std::string::npos) << error.what();
    EXPECT_NE(error.parts().reason.find("409600 bytes"), std::string::npos) << error.what();
    EXPECT_NE(error.parts().reason.find("36864 are free"), std::string::npos) << error.what();
    EXPECT_NE(error.parts().reason.find("records 360.0 KiB"), std::string::npos) << error.what();
  }
  EXPECT_THROW(arena.take(UINT64_MAX, "everything"), Error);
  EXPECT_EQ(arena.used_bytes(), 91u * 4096);  // a refusal takes nothing
  arena.take(9 * 4096, "the ring");
  EXPECT_EQ(arena.used_bytes(), arena.budget_bytes());
  EXPECT_TRUE(arena.take(0, "nothing").empty());
  EXPECT_TRUE(log.lines().empty());
}

TEST(HostArena, KeepsALedgerThatAddsUp) {
  MemoryLog log;
  HostArena arena({.budget_bytes = kMiB, .lock_pages = false}, log);
  arena.take(5000, "a");
  arena.take(4096, "b");
  uint64_t sum = 0;
  for (const HostArena::LedgerEntry& entry : arena.ledger()) sum += entry.bytes;
  ASSERT_EQ(arena.ledger().size(), 2u);
  EXPECT_EQ(arena.ledger()[0].purpose, "a");
  EXPECT_EQ(arena.ledger()[0].bytes, HostArena::cost_bytes(5000));
  EXPECT_EQ(sum, arena.used_bytes());
}

TEST(HostArena, OccupiesExactlyItsBudgetFromTheStart) {
  MemoryLog log;
  constexpr uint64_t kBudget = 33 * kMiB + 8192;  // not a multiple of huge pages
  const uint64_t before = anonymous_bytes();
  HostArena arena({.budget_bytes = kBudget, .lock_pages = false}, log);
  EXPECT_EQ(smaps_bytes(arena.memory(), "Pss:"), kBudget);
  // And no more than that beside. Not the whole Pss, which moves with other processes that come and go and
  // share the program's pages. What earlier tests of the process have left may go meanwhile.
  const uint64_t now = anonymous_bytes(), grown = now - std::min(before, now);
  const uint64_t books = testing::kSanitized ? kBudget / 8 : 0;  // the address sanitizer's, a byte for eight
  EXPECT_LE(grown, kBudget + books + 2 * kMiB);
  std::fill(arena.memory().begin(), arena.memory().end(), std::byte{1});
  EXPECT_EQ(smaps_bytes(arena.memory(), "Pss:"), kBudget);
}

TEST(HostArena, LocksAllOfItWhereAllowed) {
  const Machine machine = probe_machine();
  constexpr uint64_t kBudget = 6 * kMiB;
  if (machine.memlock_limit_bytes && *machine.memlock_limit_bytes < kBudget) {
    GTEST_SKIP() << "RLIMIT_MEMLOCK is " << *machine.memlock_limit_bytes;
  }
  MemoryLog log;
  HostArena arena({.budget_bytes = kBudget, .lock_piece_bytes = 4 * kMiB}, log);
  EXPECT_TRUE(arena.locked());
  EXPECT_EQ(smaps_bytes(arena.memory(), "Locked:"), kBudget);
  EXPECT_TRUE(log.lines().empty());
}

// In a child: an ordinary user with a limit of 5 MiB.
void become_limited() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(2);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 5 * kMiB);
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(3);
  if (geteuid() == 0 && seteuid(65534) != 0) _exit(4);
}

void become_root_again() {
  if (getuid() == 0 && seteuid(0) != 0) _exit(5);
}

TEST(HostArenaDeathTest, WorksUnlockedAndSaysSoOnceWhenTheLimitForbids) {
  EXPECT_EXIT(
      {
        become_limited();
        StderrLog log;
        HostArena arena({.budget_bytes = 6 * kMiB, .lock_piece_bytes = 4 * kMiB}, log);
        become_root_again();  // /proc is closed to who changed its user
        arena.take(6 * kMiB, "everything")[0] = std::byte{1};
        // The first piece would have fitted; none stays locked.
        const bool good = !arena.locked() && smaps_bytes(arena.memory(), "Locked:") == 0;
        _exit(good ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "^terrace: warning: cannot lock the 6.00 MiB of the host tier.*RLIMIT_MEMLOCK is 5.00 MiB.*ulimit "
      "-l[^\n]*\n$");
}

TEST(HostArena, OfNothingGivesNothing) {
  MemoryLog log;
  HostArena arena({.budget_bytes = 4095}, log);
  EXPECT_EQ(arena.budget_bytes(), 0u);
  EXPECT_THROW(arena.take(1, "anything"), Error);
  EXPECT_TRUE(log.lines().empty());
}

}  // namespace
}  // namespace terrace::host_arena_test
