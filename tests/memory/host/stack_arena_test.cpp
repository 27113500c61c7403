#include <terrace/memory/host/stack_arena.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace terrace::stack_arena_test {
namespace {

struct Memory {
  alignas(StackArena::kAlignment) std::array<std::byte, 4096> bytes;
};

uint64_t address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

TEST(StackArena, HandsOutAlignedSpansThatDoNotOverlap) {
  Memory memory;
  StackArena arena(memory.bytes);
  const std::span<float> a = arena.allocate<float>(3);
  const std::span<double> b = arena.allocate<double>(8);
  const std::span<char> c = arena.allocate<char>(65);
  EXPECT_EQ(a.size(), 3u);
  EXPECT_EQ(address(a.data()), address(memory.bytes.data()));
  EXPECT_EQ(address(b.data()), address(a.data()) + 64);
  EXPECT_EQ(address(c.data()), address(b.data()) + 64);
  EXPECT_EQ(arena.used_bytes(), 64u + 64u + 128u);
}

TEST(StackArena, GivesBackWhatAFrameAllocatedAndKeepsThePeak) {
  Memory memory;
  StackArena arena(memory.bytes);
  arena.allocate<char>(64);
  const void* inside = nullptr;
  {
    StackArena::Frame frame(arena);
    inside = arena.allocate<char>(100).data();
    {
      StackArena::Frame inner(arena);
      arena.allocate<char>(640);
    }
    EXPECT_EQ(arena.used_bytes(), 64u + 128u);
  }
  EXPECT_EQ(arena.used_bytes(), 64u);
  EXPECT_EQ(arena.peak_bytes(), 64u + 128u + 640u);
  EXPECT_EQ(arena.allocate<char>(1).data(), inside);
}

TEST(StackArena, AllocatesNothingForACountOfZero) {
  Memory memory;
  StackArena arena(memory.bytes);
  EXPECT_TRUE(arena.allocate<float>(0).empty());
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST(StackArena, UsesItsMemoryToTheLastByte) {
  Memory memory;
  StackArena arena(memory.bytes);
  EXPECT_EQ(arena.allocate<std::byte>(4096).size(), 4096u);
  EXPECT_EQ(arena.used_bytes(), 4096u);
}

TEST(StackArenaDeathTest, EndsTheProgramWhenItRunsOut) {
  Memory memory;
  StackArena arena(memory.bytes);
  arena.allocate<std::byte>(4033);
  EXPECT_DEATH(arena.allocate<float>(16), "4.00 KiB is exhausted by a request for 64 B");
}

// Random nested allocations, the same ones for a real and for a counting arena.
uint64_t run_work(StackArena& arena, std::mt19937& random, int depth) {
  uint64_t count_sum = 0;
  StackArena::Frame frame(arena);
  for (int i = 0; i < 3; ++i) {
    count_sum += arena.allocate<float>(random() % 30).size();
    if (depth > 0 && random() % 2 == 0) count_sum += run_work(arena, random, depth - 1);
  }
  return count_sum;
}

TEST(StackArena, TellsInADryRunExactlyWhatTheRealRunNeeds) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StackArena dry = StackArena::dry_run();
    EXPECT_TRUE(dry.is_dry_run());
    std::mt19937 dry_random(seed);
    const uint64_t dry_sum = run_work(dry, dry_random, 3);
    EXPECT_EQ(dry.used_bytes(), 0u);

    // One cache line more than the plan, so that an empty plan still has an address.
    std::vector<std::byte> storage(dry.peak_bytes() + 2 * StackArena::kAlignment);
    std::byte* begin =
        storage.data() + (StackArena::kAlignment - address(storage.data()) % StackArena::kAlignment);
    StackArena real(std::span(begin, dry.peak_bytes() + 1));
    EXPECT_FALSE(real.is_dry_run());
    std::mt19937 real_random(seed);
    EXPECT_EQ(run_work(real, real_random, 3), dry_sum);
    EXPECT_EQ(real.peak_bytes(), dry.peak_bytes());
  }
}

}  // namespace
}  // namespace terrace::stack_arena_test
