// Schedule and ScheduleCursor: distances against a naive scan, and cursors that follow steps which skip,
// repeat, swap and invent operations.
#include <terrace/memory/space/schedule.h>

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "support/allocation_counter.h"

namespace terrace::schedule_test {
namespace {

std::vector<ChunkId> chunks_of(std::vector<uint32_t> ids) {
  std::vector<ChunkId> chunks;
  for (uint32_t id : ids) chunks.push_back(ChunkId{id});
  return chunks;
}

ScheduledUse use(std::string operation, std::vector<uint32_t> ids, UseKind kind = UseKind::forward) {
  return {std::move(operation), kind, chunks_of(std::move(ids))};
}

// Two layers and a head, forward and backward.
std::vector<ScheduledUse> small_step() {
  return {use("l0/f", {0}), use("l1/f", {1, 2}), use("head", {3}), use("l1/b", {1, 2}, UseKind::backward),
          use("l0/b", {0}, UseKind::backward)};
}

// Runs a step and returns the positions that advance() answered.
std::vector<uint32_t> follow(ScheduleCursor& cursor, const std::vector<ScheduledUse>& uses) {
  std::vector<uint32_t> positions;
  for (const ScheduledUse& u : uses) positions.push_back(cursor.advance(u.operation, u.kind, u.chunks));
  return positions;
}

bool run_step(ScheduleCursor& cursor, const std::vector<ScheduledUse>& uses) {
  cursor.begin_step();
  follow(cursor, uses);
  return cursor.end_step();
}

bool is_schedule(const Schedule& schedule, const std::vector<ScheduledUse>& uses) {
  return std::ranges::equal(schedule.uses(), uses);
}

using Positions = std::vector<uint32_t>;

TEST(Schedule, CountsTheUsesUntilTheNextOneWithoutTheOneInProgress) {
  const Schedule schedule(small_step(), 5);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{1}, 0), 1u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{1}, 1), 2u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, 0), 4u);
}

TEST(Schedule, AChunkThatIsRenewedIsNotUsedAgainAfterItsLastUseOfTheStep) {
  const std::vector<ScheduledUse> uses = {use("a", {0, 1}), use("b", {0, 1}), use("c", {})};
  const Schedule schedule(uses, 2, {true, false});
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, 0), 1u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, 1), kNever);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{1}, 1), 2u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, kNever), 1u);
}

TEST(Schedule, WrapsIntoTheNextStep) {
  const Schedule schedule(small_step(), 5);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, 4), 1u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{3}, 2), 5u);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{3}, 3), 4u);
}

TEST(Schedule, DoesNotWrapWithinAStep) {
  const Schedule schedule(small_step(), 5);
  EXPECT_EQ(schedule.distance_within_step(ChunkId{3}, 1), 1u);
  EXPECT_EQ(schedule.distance_within_step(ChunkId{3}, 2), kNever);
  EXPECT_EQ(schedule.distance_within_step(ChunkId{0}, 4), kNever);
}

TEST(Schedule, CountsFromBeforeTheFirstUseAtPositionNever) {
  const Schedule schedule(small_step(), 5);
  EXPECT_EQ(schedule.distance_to_next_use(ChunkId{0}, kNever), 1u);
  EXPECT_EQ(schedule.distance_within_step(ChunkId{3}, kNever), 3u);
}

TEST(Schedule, NeverUsesAChunkThatNoUseNames) {
  EXPECT_EQ(Schedule(small_step(), 5).distance_to_next_use(ChunkId{4}, 0), kNever);
  EXPECT_EQ(Schedule(small_step(), 5).distance_within_step(ChunkId{4}, 0), kNever);
  EXPECT_EQ(Schedule().distance_to_next_use(ChunkId{4}, kNever), kNever);
  EXPECT_TRUE(Schedule().empty());
}

TEST(Schedule, FindsTheFirstUseOfAnOperationFromAPositionOn) {
  const Schedule schedule({use("a", {0}), use("b", {}), use("a", {1}), use("ab", {2})}, 3);
  EXPECT_EQ(schedule.find("a", 0), 0u);
  EXPECT_EQ(schedule.find("a", 1), 2u);
  EXPECT_EQ(schedule.find("a", 3), kNever);
  EXPECT_EQ(schedule.find("ab", 0), 3u);
  EXPECT_EQ(schedule.find("c", 0), kNever);
  EXPECT_EQ(schedule.find("", 0), kNever);
  EXPECT_EQ(Schedule().find("a", 0), kNever);
}

TEST(ScheduleDeathTest, AssertsThatChunksAreSortedUniqueAndKnown) {
  EXPECT_DEATH(Schedule({use("a", {1, 0})}, 2), "not sorted and unique");
  EXPECT_DEATH(Schedule({use("a", {1, 1})}, 2), "not sorted and unique");
  EXPECT_DEATH(Schedule({use("a", {0, 2})}, 2), "names chunk 2 of 2");
  EXPECT_DEATH(Schedule(small_step(), 5).distance_to_next_use(ChunkId{5}, 0), "no chunk 5");
  EXPECT_DEATH(Schedule(small_step(), 5).distance_to_next_use(ChunkId{0}, 5), "position 5 of 5");
}

std::vector<ScheduledUse> random_uses(std::mt19937& random, uint32_t chunk_count) {
  std::vector<ScheduledUse> uses(random() % 30);
  for (ScheduledUse& u : uses) {
    u.operation = "op" + std::to_string(random() % 12);
    u.kind = static_cast<UseKind>(random() % 3);
    for (uint32_t c = 0; c < chunk_count; ++c) {
      if (random() % 4 == 0) u.chunks.push_back(ChunkId{c});
    }
  }
  return uses;
}

// The model: walk one use at a time, round the step once.
uint32_t naive_distance(const std::vector<ScheduledUse>& uses, ChunkId chunk, uint32_t position, bool wrap) {
  const uint32_t size = static_cast<uint32_t>(uses.size());
  const uint32_t first = position == kNever ? 0 : position + 1;
  for (uint32_t i = first; i < (wrap ? first + size : size); ++i) {
    const auto& chunks = uses[i % size].chunks;
    if (std::find(chunks.begin(), chunks.end(), chunk) != chunks.end()) return i - first + 1;
  }
  return kNever;
}

TEST(Schedule, MatchesANaiveScanOnRandomSchedules) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t chunk_count = 1 + random() % 8;
    const std::vector<ScheduledUse> uses = random_uses(random, chunk_count);
    const Schedule schedule(uses, chunk_count);
    for (uint32_t i = 0; i <= uses.size(); ++i) {
      const uint32_t position = i == uses.size() ? kNever : i;
      for (uint32_t c = 0; c < chunk_count; ++c) {
        EXPECT_EQ(schedule.distance_to_next_use(ChunkId{c}, position),
                  naive_distance(uses, ChunkId{c}, position, true));
        EXPECT_EQ(schedule.distance_within_step(ChunkId{c}, position),
                  naive_distance(uses, ChunkId{c}, position, false));
      }
      for (uint32_t op = 0; op < 12; ++op) {
        const std::string key = "op" + std::to_string(op);
        uint32_t expected = i;
        while (expected < uses.size() && uses[expected].operation != key) ++expected;
        EXPECT_EQ(schedule.find(key, i), expected < uses.size() ? expected : kNever);
      }
    }
  }
}

TEST(ScheduleCursor, RecordsTheFirstStep) {
  ScheduleCursor cursor(5);
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, small_step()), Positions(5, kNever));
  EXPECT_EQ(cursor.position(), kNever);
  EXPECT_TRUE(cursor.end_step());
  EXPECT_TRUE(is_schedule(cursor.schedule(), small_step()));
}

TEST(ScheduleCursor, FollowsAStepThatMatchesAndKeepsTheSchedule) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  cursor.begin_step();
  EXPECT_EQ(cursor.position(), kNever);
  EXPECT_EQ(follow(cursor, small_step()), (Positions{0, 1, 2, 3, 4}));
  EXPECT_EQ(cursor.position(), 4u);
  EXPECT_FALSE(cursor.end_step());
  EXPECT_EQ(cursor.position(), kNever);
}

TEST(ScheduleCursor, UsesAnAnnouncedScheduleFromTheFirstStepOn) {
  ScheduleCursor cursor(5);
  cursor.set_schedule(Schedule(small_step(), 5));
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, small_step()), (Positions{0, 1, 2, 3, 4}));
  EXPECT_FALSE(cursor.end_step());
}

TEST(ScheduleCursor, GoesOnBehindSkippedUses) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  auto skipping = small_step();
  skipping.erase(skipping.begin() + 1, skipping.begin() + 3);
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, skipping), (Positions{0, 3, 4}));
  EXPECT_TRUE(cursor.end_step());
  EXPECT_TRUE(is_schedule(cursor.schedule(), skipping));
}

TEST(ScheduleCursor, KeepsThePositionDuringUnknownUses) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  auto extended = small_step();
  extended.insert(extended.begin() + 2, use("expert", {4}));
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, {extended[0], extended[1], extended[2]}), (Positions{0, 1, kNever}));
  EXPECT_EQ(cursor.position(), 1u);
  EXPECT_EQ(follow(cursor, {extended[3], extended[4], extended[5]}), (Positions{2, 3, 4}));
  EXPECT_TRUE(cursor.end_step());
  EXPECT_TRUE(is_schedule(cursor.schedule(), extended));
}

TEST(ScheduleCursor, GoesBackToARepeatedUseAndFollowsFromThere) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  const auto s = small_step();
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, {s[0], s[1], s[2], s[0], s[1], s[2], s[2], s[3], s[4]}),
            (Positions{0, 1, 2, 0, 1, 2, 2, 3, 4}));
  EXPECT_TRUE(cursor.end_step());
  EXPECT_EQ(cursor.schedule().size(), 9u);
}

TEST(ScheduleCursor, FindsItsWayAfterUsesThatSwappedPlaces) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  const auto s = small_step();
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, {s[0], s[2], s[1], s[3], s[4]}), (Positions{0, 2, 1, 3, 4}));
  EXPECT_TRUE(cursor.end_step());
}

TEST(ScheduleCursor, IsNotMisledByAnEvaluationThatRunsTheSameOperations) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  const auto s = small_step();
  auto evaluation = s[0];
  evaluation.kind = UseKind::inference;
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, {s[0], s[1], evaluation, evaluation, s[2]}), (Positions{0, 1, kNever, kNever, 2}));
  EXPECT_TRUE(cursor.end_step());
}

TEST(ScheduleCursor, LooksPastAUseOfTheSameOperationAndAnotherKind) {
  const auto train = use("l0", {0});
  const auto evaluate = use("l0", {0}, UseKind::inference);
  ScheduleCursor cursor(5);
  run_step(cursor, {use("a", {1}), evaluate, use("b", {1}), train});
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, {use("a", {1}), train, evaluate, train}), (Positions{0, 3, 1, 3}));
  cursor.end_step();
}

TEST(ScheduleCursor, NoticesOtherChunksUnderAKnownOperation) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  auto moved = small_step();
  moved[2].chunks = chunks_of({3, 4});
  cursor.begin_step();
  EXPECT_EQ(follow(cursor, moved), (Positions{0, 1, 2, 3, 4}));
  EXPECT_TRUE(cursor.end_step());
  EXPECT_TRUE(is_schedule(cursor.schedule(), moved));
}

TEST(ScheduleCursor, TakesOverAStepThatEndedEarlyOrWentOnLonger) {
  ScheduleCursor cursor(5);
  const auto full = small_step();
  const std::vector<ScheduledUse> early(full.begin(), full.begin() + 3);
  run_step(cursor, full);
  EXPECT_TRUE(run_step(cursor, early));
  EXPECT_TRUE(is_schedule(cursor.schedule(), early));
  EXPECT_TRUE(run_step(cursor, full));
  EXPECT_TRUE(is_schedule(cursor.schedule(), full));
}

TEST(ScheduleCursor, ForgetsAnAbandonedStep) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  cursor.begin_step();
  follow(cursor, {use("stray", {4}), use("l0/f", {0})});
  cursor.begin_step();
  EXPECT_EQ(cursor.position(), kNever);
  EXPECT_FALSE(run_step(cursor, small_step()));
  EXPECT_TRUE(is_schedule(cursor.schedule(), small_step()));
}

TEST(ScheduleCursor, IgnoresUsesBetweenSteps) {
  ScheduleCursor cursor(5);
  run_step(cursor, small_step());
  EXPECT_EQ(follow(cursor, small_step()), Positions(5, kNever));
  EXPECT_EQ(cursor.position(), kNever);
  EXPECT_FALSE(run_step(cursor, small_step()));
}

TEST(ScheduleCursorDeathTest, AssertsThatStepsAreBegunAndEndedInTurn) {
  EXPECT_DEATH(ScheduleCursor(1).end_step(), "without begin_step");
  EXPECT_DEATH(
      {
        ScheduleCursor cursor(1);
        cursor.begin_step();
        cursor.set_schedule(Schedule());
      },
      "between steps");
}

// Every step is the one before with random edits; the model keeps what happened in a plain vector.
TEST(ScheduleCursor, AlwaysEndsWithTheStepThatHappenedAsItsSchedule) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    ScheduleCursor cursor(6);
    std::vector<ScheduledUse> before;
    std::vector<ScheduledUse> now = random_uses(random, 6);
    for (int step = 0; step < 8; ++step) {
      cursor.begin_step();
      for (const ScheduledUse& u : now) {
        const uint32_t position = cursor.advance(u.operation, u.kind, u.chunks);
        const bool known = std::any_of(before.begin(), before.end(), [&](const ScheduledUse& b) {
          return b.operation == u.operation && b.kind == u.kind;
        });
        ASSERT_EQ(position != kNever, known);
        if (!known) continue;
        EXPECT_EQ(position, cursor.position());
        EXPECT_EQ(before[position].operation, u.operation);
        EXPECT_EQ(before[position].kind, u.kind);
      }
      EXPECT_EQ(cursor.end_step(), now != before);
      ASSERT_TRUE(is_schedule(cursor.schedule(), now));
      before = now;
      const uint32_t edit = random() % 5;
      if (edit == 0) now = random_uses(random, 6);
      if (edit == 1 && !now.empty()) now.erase(now.begin() + random() % now.size());
      if (edit == 2) now.insert(now.begin() + random() % (now.size() + 1), use("new", {5}));
      if (edit == 3 && now.size() > 1) std::swap(now[random() % now.size()], now[random() % now.size()]);
    }
  }
}

TEST(ScheduleCursor, AllocatesNothingWhileTheStepMatches) {
  ScheduleCursor cursor(5);
  auto step = small_step();
  for (ScheduledUse& u : step) u.operation += "/a key too long for the string's own buffer";
  run_step(cursor, step);
  const uint64_t before = testing::allocations_of_this_thread();
  cursor.begin_step();
  for (const ScheduledUse& u : step) cursor.advance(u.operation, u.kind, u.chunks);
  EXPECT_FALSE(cursor.end_step());
  EXPECT_EQ(testing::allocations_of_this_thread(), before);
  step[3].operation += "!";
  EXPECT_TRUE(run_step(cursor, step));
  if (testing::kCountsAllocations) {
    EXPECT_GT(testing::allocations_of_this_thread(), before);
  }
}

}  // namespace
}  // namespace terrace::schedule_test
