// The slot map against a naive model: for every slot the set of those who name it.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include <terrace/memory/tier/internal/slot_map.h>

namespace terrace::slot_map_test {
namespace {

using Slot = std::pair<uint32_t, uint32_t>;  // path, slot

Slot slot_of(const StoredBlock& where) {
  return {where.path, where.slot};
}

TEST(SlotMap, GivesOutFreeSlotsInARound) {
  SlotMap map({130}, 4);
  for (uint32_t s = 0; s < 130; ++s) EXPECT_EQ(map.take(0), s);
  EXPECT_EQ(map.free_slots()[0], 0u);
  for (const uint32_t s : {129u, 64u, 63u, 7u}) map.put_back({.path = 0, .slot = s});
  EXPECT_EQ(map.take(0), 7u);
  EXPECT_EQ(map.take(0), 63u);
  map.put_back({.path = 0, .slot = 7});
  for (const uint32_t s : {64u, 129u, 7u}) EXPECT_EQ(map.take(0), s);
  map.check();
}

TEST(SlotMap, FindsTheOnlyFreeSlotWhereverItIs) {
  for (const uint32_t lonely : {0u, 63u, 64u, 4095u, 4096u, 8999u}) {
    SlotMap map({9000}, 1);
    for (uint32_t s = 0; s < 9000; ++s) map.take(0);
    for (int round = 0; round < 3; ++round) {
      map.put_back({.path = 0, .slot = lonely});
      EXPECT_EQ(map.take(0), lonely);
    }
    map.check();
  }
}

// A step that writes 2000 blocks, 20 at a time, whose writes end somewhat out of order; every fifth one ends
// with a commit. Lowest first, what is neighbours in memory is in 1470 runs after that, last in first out in
// 1950.
TEST(SlotMap, LaysBlocksThatAreWrittenTogetherNextToEachOther) {
  constexpr size_t kBlocks = 2000, kInFlight = 20;
  SlotMap map({2 * kBlocks + kInFlight}, kBlocks);
  std::mt19937_64 random(1);
  uint32_t commit = map.open_snapshot();
  for (int step = 0; step < 40; ++step) {
    const bool commits = step % 5 == 0;
    const uint32_t next = commits ? map.open_snapshot() : commit;
    std::vector<std::pair<size_t, StoredBlock>> writing;
    for (size_t block = 0; block < kBlocks + kInFlight; ++block) {
      if (commits && block == kInFlight / 2) map.close_snapshot(std::exchange(commit, next));
      if (block < kBlocks) writing.push_back({block, {0, map.take(0), block}});
      if (writing.size() < kInFlight / 2 && block < kBlocks) continue;
      if (writing.empty()) break;
      const size_t ends = random() % std::min<size_t>(4, writing.size());
      map.put(writing[ends].first, writing[ends].second);
      writing.erase(writing.begin() + static_cast<ptrdiff_t>(ends));
    }
  }
  map.check();
  size_t runs = 1;
  for (size_t block = 1; block < kBlocks; ++block)
    runs += map.current(block).slot == map.current(block - 1).slot + 1 ? 0 : 1;
  EXPECT_LT(runs, 800u);
}

TEST(SlotMap, KeepsASlotAsLongAsASnapshotHasIt) {
  SlotMap map({3}, 1);
  map.put(0, {0, map.take(0), 11});
  const uint32_t first = map.open_snapshot();
  map.put(0, {0, map.take(0), 22});
  const uint32_t second = map.open_snapshot();
  EXPECT_EQ(map.free_slots()[0], 1u);
  map.put(0, {0, map.take(0), 33});
  EXPECT_EQ(map.free_slots()[0], 0u);
  map.close_snapshot(first);
  EXPECT_EQ(map.free_slots()[0], 1u);
  EXPECT_EQ(map.take(0), 0u);  // the one that only the first snapshot had
  EXPECT_EQ(map.snapshot(second)[0].checksum, 22u);
  map.put_back({.path = 0, .slot = 0});
  map.close_snapshot(second);
  EXPECT_EQ(map.free_slots()[0], 2u);
  map.check();
}

TEST(SlotMap, LetsASnapshotTakeABlockThatWasWrittenSince) {
  SlotMap map({4}, 2);
  map.put(0, {0, map.take(0), 1});
  const uint32_t snapshot = map.open_snapshot();
  EXPECT_EQ(map.snapshot(snapshot)[1].path, kNoPath);
  map.put(1, {0, map.take(0), 2});
  map.adopt(snapshot, 1);
  map.put(1, {0, map.take(0), 3});  // what the snapshot took stays
  EXPECT_EQ(map.snapshot(snapshot)[1].checksum, 2u);
  EXPECT_EQ(map.free_slots()[0], 1u);
  map.check();
  map.close_snapshot(snapshot);
  map.check();
  EXPECT_EQ(map.free_slots()[0], 2u);
}

TEST(SlotMap, NeverGivesOutASlotThatWasSetAside) {
  SlotMap map({2}, 1);
  map.set_aside({.path = 0, .slot = map.take(0)});
  EXPECT_EQ(map.take(0), 1u);
  EXPECT_EQ(map.free_slots()[0], 0u);
  EXPECT_EQ(map.bad_slots(), 1u);
  map.put_back({.path = 0, .slot = 1});
  map.check();
}

TEST(SlotMap, TakesUpACommitAndWhatIsRetainedBesideIt) {
  SlotMap map({4, 4}, 2);
  const std::vector<StoredBlock> commit = {{0, 2, 5}, {1, 1, 6}};
  const std::vector<StoredBlock> retained = {{0, 2, 5}, {0, 0, 7}};
  map.restore(commit);
  const uint32_t snapshot = map.open_snapshot(retained);
  map.check();
  EXPECT_EQ(map.free_slots()[0], 2u);
  EXPECT_EQ(map.free_slots()[1], 3u);
  EXPECT_EQ(map.take(0), 1u);  // not 0, not 2
  EXPECT_EQ(map.take(0), 3u);
  map.put(0, {0, 3, 8});
  map.put_back({.path = 0, .slot = 1});
  map.close_snapshot(snapshot);
  map.check();
  EXPECT_EQ(map.free_slots()[0], 3u);
}

// Seeded operations: what may be taken is what nobody names.
class SlotMapModel {
 public:
  SlotMapModel(uint64_t seed, std::vector<uint32_t> counts, size_t blocks)
      : random_(seed), counts_(counts), map_(counts, blocks), current_(blocks) {}

  void step() {
    const uint64_t what = random_() % 100;
    if (what < 40)
      take();
    else if (what < 75)
      end();
    else if (what < 85)
      open();
    else if (what < 93)
      close();
    else
      adopt();
    map_.check();
    compare();
  }

 private:
  std::set<Slot> named() const {
    std::set<Slot> slots(aside_);
    const auto add = [&](const StoredBlock& where) {
      if (where.path != kNoPath) slots.insert(slot_of(where));
    };
    for (const StoredBlock& where : current_) add(where);
    for (const auto& [number, blocks] : snapshots_) {
      for (const StoredBlock& where : blocks) add(where);
    }
    for (const auto& [block, where] : writing_) add(where);
    return slots;
  }
  void compare() const {
    const std::set<Slot> used = named();
    for (uint32_t p = 0; p < counts_.size(); ++p) {
      uint64_t free = 0;
      for (uint32_t s = 0; s < counts_[p]; ++s) free += used.contains({p, s}) ? 0 : 1;
      ASSERT_EQ(map_.free_slots()[p], free);
    }
    for (size_t b = 0; b < current_.size(); ++b) ASSERT_EQ(map_.current(b), current_[b]);
    for (const auto& [number, blocks] : snapshots_) {
      ASSERT_TRUE(std::equal(blocks.begin(), blocks.end(), map_.snapshot(number).begin()));
    }
  }
  void take() {
    const auto path = static_cast<uint32_t>(random_() % counts_.size());
    const size_t block = random_() % current_.size();
    if (map_.free_slots()[path] == 0 || writing_.contains(block)) return;
    const std::set<Slot> used = named();
    const StoredBlock where{path, map_.take(path), random_()};
    ASSERT_FALSE(used.contains(slot_of(where)));
    writing_[block] = where;
  }
  void end() {
    if (writing_.empty()) return;
    const auto write = std::next(writing_.begin(), static_cast<ptrdiff_t>(random_() % writing_.size()));
    const uint64_t how = random_() % 20;
    if (how == 0 && aside_.size() < 5) {
      map_.set_aside(write->second);
      aside_.insert(slot_of(write->second));
    } else if (how == 1) {
      map_.put_back(write->second);
    } else {
      map_.put(write->first, write->second);
      current_[write->first] = write->second;
    }
    writing_.erase(write);
  }
  void open() {
    if (snapshots_.size() < 4) snapshots_[map_.open_snapshot()] = current_;
  }
  void close() {
    if (snapshots_.empty()) return;
    const auto victim = std::next(snapshots_.begin(), static_cast<ptrdiff_t>(random_() % snapshots_.size()));
    map_.close_snapshot(victim->first);
    snapshots_.erase(victim);
  }
  void adopt() {
    if (snapshots_.empty()) return;
    const size_t block = random_() % current_.size();
    auto& [number, blocks] = *snapshots_.begin();
    map_.adopt(number, block);
    blocks[block] = current_[block];
  }

  std::mt19937_64 random_;
  std::vector<uint32_t> counts_;
  SlotMap map_;
  std::vector<StoredBlock> current_;
  std::map<uint32_t, std::vector<StoredBlock>> snapshots_;
  std::map<size_t, StoredBlock> writing_;
  std::set<Slot> aside_;
};

TEST(SlotMap, AgreesWithANaiveModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    SlotMapModel model(seed, {70, 0, 33}, 20);
    for (int step = 0; step < 500; ++step) {
      model.step();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SlotMapDeathTest, AbortsWhenASlotIsGivenBackTwice) {
  SlotMap map({2}, 1);
  const StoredBlock taken{0, map.take(0), 1};
  map.put_back(taken);
  EXPECT_DEATH(map.put_back(taken), "was not taken for a write");
  EXPECT_DEATH(map.put(0, taken), "was not taken for a write");
  EXPECT_DEATH(map.close_snapshot(0), "has gone");
}

}  // namespace
}  // namespace terrace::slot_map_test
