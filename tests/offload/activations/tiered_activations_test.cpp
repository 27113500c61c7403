// Saved activations come back as they were from wherever they lie, move no more bytes than they must, stay
// within their budget to the byte, and say every failure.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/activations/tiered_activations.h>
#include <terrace/offload/plan/budget_shortage.h>

#include "support/expect_error.h"
#include "support/fault_engine.h"
#include "support/scratch_folder.h"

namespace terrace::tiered_activations_test {
namespace {

using testing::expect_error;
using Room = SavedActivations::Room;

constexpr uint64_t kUnit = SavedDisk::kUnitBytes;
constexpr uint64_t kBytes = kUnit - 24;  // of which no block has its last unit full
constexpr uint64_t kOther = 3 * kMiB;

std::unique_ptr<io::Engine> threads_engine() {
  io::EngineOptions options;
  options.kind = io::EngineKind::threads;
  return io::make_engine(options);
}

enum class Drive : uint8_t { none, one, full };

class Rig {
 public:
  explicit Rig(uint64_t most_bytes, Drive drive = Drive::one, std::vector<io::Fault> faults = {})
      : io_(std::make_unique<io::FaultEngine>(threads_engine(), std::move(faults))),
        saved_({.memory = {.most_bytes = most_bytes,
                           .granule_bytes = drive != Drive::none ? kUnit : HostArena::kAlignment,
                           .lock_pages = false},
                .other_host_bytes = kOther,
                .budget_that_leaves = [](uint64_t bytes) { return kOther + bytes; }},
               device_, watch_, log_, drive != Drive::none ? disk(drive) : nullptr, &io_) {}

  // Saves bytes that depend on `seed`.
  SavedActivation save(uint32_t seed, uint64_t bytes = kBytes) {
    const std::vector<std::byte> values = bytes_of(seed, bytes);
    const SavedActivation saved = saved_.start_save(values.data(), values.size());
    saved_.finish_save(saved);
    return saved;
  }
  void expect(SavedActivation saved, uint32_t seed, uint64_t bytes = kBytes) {
    std::vector<std::byte> found(bytes);
    ASSERT_TRUE(saved_.start_load(saved, found.data(), Room::is_made));
    saved_.finish_load(saved);
    ASSERT_EQ(std::memcmp(found.data(), bytes_of(seed, bytes).data(), bytes), 0) << "saved as " << seed;
  }
  TieredActivations& saved() { return saved_; }
  // Changes a byte of every file of saved activations.
  void damage() const {
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (!file.path().filename().string().starts_with("saved")) continue;
      const int fd = open(file.path().c_str(), O_RDWR);
      char byte = 0;
      ASSERT_EQ(pread(fd, &byte, 1, 100), 1);
      byte = static_cast<char>(byte ^ 1);
      ASSERT_EQ(pwrite(fd, &byte, 1, 100), 1);
      close(fd);
    }
  }

 private:
  static std::vector<std::byte> bytes_of(uint32_t seed, uint64_t bytes) {
    std::vector<uint32_t> words(divide_up(bytes, sizeof(uint32_t)));
    std::iota(words.begin(), words.end(), seed * 0x9e3779b9u);
    std::vector<std::byte> values(bytes);
    std::memcpy(values.data(), words.data(), bytes);
    return values;
  }
  std::unique_ptr<SavedDisk> disk(Drive drive) {
    return std::make_unique<SavedDisk>([this, drive](uint32_t number, uint32_t units) {
      if (drive == Drive::full && (number > 0 || units > SavedDisk::kFirstUnits / 8))
        throw Error(ErrorKind::capacity, {"there is no room for", "saved", "the drive is full", "free some"});
      BlockStoreOptions options;
      options.name = "saved" + std::to_string(number);
      options.block_bytes = kUnit;
      options.chunk_bytes.assign(units, kUnit);
      return std::make_unique<BlockStore>(tier_, std::move(options), *engine_, log_);
    });
  }

  ScratchFolder folder_;
  MemoryLog log_;
  TierSpace tier_{{.paths = {{folder_.path()}}}, log_};
  std::unique_ptr<io::Engine> engine_ = threads_engine();
  io::IoThread io_;
  SimulatedDevice device_{{.budget_bytes = 64 * kKiB}};
  StepWatch watch_;
  TieredActivations saved_;
};

std::vector<SavedActivation> save_all(Rig& rig, uint32_t count) {
  std::vector<SavedActivation> all;
  for (uint32_t i = 0; i < count; ++i) all.push_back(rig.save(i));
  return all;
}

// As a backward pass does: each is asked for, used and dropped before the one that was saved before it.
void take_back(Rig& rig, const std::vector<SavedActivation>& all) {
  for (auto i = static_cast<uint32_t>(all.size()); i-- > 0;) {
    rig.expect(all[i], i);
    rig.saved().drop(all[i]);
  }
}

TEST(TieredActivations, MoveOnceEachWayWhereHostMemoryHoldsThem) {
  for (const Drive drive : {Drive::none, Drive::one}) {
    Rig rig(5 * kUnit, drive);
    for (int pass = 0; pass < 2; ++pass) take_back(rig, save_all(rig, 5));
    EXPECT_EQ(rig.saved().d2h_bytes(), 10 * kBytes);
    EXPECT_EQ(rig.saved().h2d_bytes(), 10 * kBytes);
    EXPECT_EQ(rig.saved().write_bytes(), drive == Drive::one ? 2 * kUnit : 0) << "one is written ahead";
    EXPECT_EQ(rig.saved().read_bytes(), 0u);
    const SavedUse use = rig.saved().use();
    EXPECT_EQ(use.host_peak_bytes, 5 * (drive == Drive::one ? kUnit : round_up(kBytes, 4096)));
    EXPECT_LE(use.host_held_bytes, use.host_most_bytes);
    EXPECT_EQ(use.count, 0u);
    EXPECT_EQ(use.host_bytes, 0u);
    EXPECT_EQ(use.nvme_bytes, 0u);
  }
}

TEST(TieredActivations, WriteThoseThatAreWantedLastAndReadEachOnce) {
  Rig rig(3 * kUnit);
  for (int pass = 1; pass <= 2; ++pass) {
    const std::vector<SavedActivation> all = save_all(rig, 10);
    EXPECT_EQ(rig.saved().use().host_bytes, 3 * kUnit);
    take_back(rig, all);
    EXPECT_EQ(rig.saved().write_bytes(), pass * (10 - 3 + 1) * kUnit) << "one is written ahead";
    EXPECT_EQ(rig.saved().read_bytes(), pass * (10 - 3) * kUnit);
  }
  const SavedUse use = rig.saved().use();
  EXPECT_EQ(use.host_peak_bytes, 3 * kUnit);
  EXPECT_EQ(use.host_held_bytes, 3 * kUnit);
  EXPECT_EQ(use.nvme_peak_bytes, 8 * kUnit);
}

TEST(TieredActivations, SayOfEachStepWhatItTakesAndMoves) {
  Rig rig(3 * kUnit);
  std::vector<SavedActivation> kept = save_all(rig, 10);
  for (int step = 1; step <= 2; ++step) {
    rig.saved().begin_step();
    if (step == 2) kept = save_all(rig, 10);
    take_back(rig, kept);
    const SavedStep found = rig.saved().step();
    EXPECT_EQ(found.wanted_bytes, 10 * kUnit);
    EXPECT_EQ(found.host_bytes, 3 * kUnit);
    EXPECT_EQ(found.nvme_bytes, 8 * kUnit);
    EXPECT_EQ(found.d2h_bytes, step == 2 ? 10 * kBytes : 0) << "they were saved before the first one";
    EXPECT_EQ(found.h2d_bytes, 10 * kBytes);
    EXPECT_EQ(found.write_bytes, step == 2 ? 8 * kUnit : 0);
    EXPECT_EQ(found.read_bytes, 7 * kUnit);
  }
  rig.saved().begin_step();
  const SavedStep none = rig.saved().step();
  EXPECT_EQ(none.wanted_bytes + none.host_bytes + none.nvme_bytes + none.h2d_bytes + none.read_bytes, 0u);
}

TEST(TieredActivations, AreReadAheadIntoRoomThatComesFree) {
  Rig rig(3 * kUnit);
  const std::vector<SavedActivation> all = save_all(rig, 10);
  rig.expect(all[9], 9);
  EXPECT_EQ(rig.saved().read_bytes(), 0u) << "there is no room";
  rig.saved().drop(all[9]);
  EXPECT_EQ(rig.saved().read_bytes(), kUnit) << "the next one of nvme comes";
  rig.expect(all[8], 8);
  rig.saved().drop(all[8]);
  EXPECT_EQ(rig.saved().read_bytes(), 2 * kUnit);
  // It has room, so it can be asked for ahead of its use.
  std::vector<std::byte> ahead(kBytes);
  EXPECT_TRUE(rig.saved().start_load(all[5], ahead.data(), Room::must_be_there));
  rig.saved().finish_load(all[5]);
}

TEST(TieredActivations, AreNotLoadedAheadWhereOthersWouldHaveToLeave) {
  Rig rig(kUnit);
  const std::vector<SavedActivation> all = save_all(rig, 2);
  std::vector<std::byte> ahead(kBytes);
  EXPECT_FALSE(rig.saved().start_load(all[0], ahead.data(), Room::must_be_there));
  EXPECT_EQ(rig.saved().read_bytes(), 0u);
  take_back(rig, all);
}

TEST(TieredActivations, ComeBackAsOftenAsTheyAreAskedFor) {
  Rig rig(2 * kUnit);
  const std::vector<SavedActivation> all = save_all(rig, 6);
  for (int pass = 0; pass < 3; ++pass) {
    for (uint32_t i = 6; i-- > 0;) rig.expect(all[i], i);
  }
  for (const SavedActivation saved : all) rig.saved().drop(saved);
  EXPECT_EQ(rig.saved().use().nvme_bytes, 0u);
  expect_error(ErrorKind::misuse, {"saved activation 3", "it was dropped"}, [&] { rig.expect(all[2], 2); });
}

// Seeded sequences of everything that may be asked for, against a map of what must come back.
TEST(TieredActivations, AreThoseOfANaiveModelWhateverIsAskedFor) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    Rig rig((3 + seed % 4) * kUnit);
    std::mt19937 random(seed);
    std::map<SavedActivation, std::pair<uint32_t, uint64_t>> there;
    for (uint32_t turn = 0; turn < 100; ++turn) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", turn " << turn);
      const uint32_t what = random() % 4;
      if (there.empty() || (what < 2 && there.size() < 20)) {
        const uint64_t bytes = 1 + random() % (3 * kUnit);
        there[rig.save(turn, bytes)] = {turn, bytes};
        continue;
      }
      const auto one = std::next(there.begin(), static_cast<ptrdiff_t>(random() % there.size()));
      if (what == 2) {
        ASSERT_NO_FATAL_FAILURE(rig.expect(one->first, one->second.first, one->second.second));
      } else {
        rig.saved().drop(one->first);
        there.erase(one);
      }
      const SavedUse use = rig.saved().use();
      ASSERT_EQ(use.count, there.size());
      ASSERT_LE(use.host_peak_bytes, use.host_most_bytes);
      ASSERT_LE(use.host_held_bytes, use.host_most_bytes);
    }
  }
}

// --- Failures, each of which leaves the others as they were ---

TEST(TieredActivations, NameTheLeastHostBudgetWhereThereIsNoDrive) {
  constexpr uint64_t kCost = round_up(kBytes, 4096);
  Rig rig(3 * kCost + 4096, Drive::none);
  const std::vector<SavedActivation> all = save_all(rig, 3);
  try {
    rig.save(3);
    FAIL() << "there is no room";
  } catch (const ShortageError& error) {
    ASSERT_EQ(error.tiers().size(), 1u);
    EXPECT_EQ(error.tiers()[0].needed_bytes, kOther + 4 * kCost);
  }
  take_back(rig, all);
}

TEST(TieredActivations, NameTheLeastHostBudgetOfOneThatIsTooLargeByItself) {
  Rig rig(kUnit);
  const SavedActivation first = rig.save(1);
  try {
    rig.save(2, 2 * kUnit + 1);
    FAIL() << "there is no room";
  } catch (const ShortageError& error) {
    EXPECT_EQ(error.tiers()[0].needed_bytes, kOther + 3 * kUnit);
  }
  rig.expect(first, 1);
}

TEST(TieredActivations, SayWhoseBytesTheDriveDidNotTakeAndKeepThem) {
  Rig rig(2 * kUnit, Drive::one, {{.index = 0, .error = EIO, .operation = io::OpKind::write}});
  const std::vector<SavedActivation> all = save_all(rig, 2);
  expect_error(ErrorKind::io, {"saved0.tier", "saved activation 1", "EIO"}, [&] { rig.save(9); });
  rig.expect(all[0], 0);
  const SavedActivation third = rig.save(2);
  rig.expect(third, 2);
  rig.expect(all[0], 0);
}

// A file as large as is liked finds no room, one for what is needed does.
TEST(TieredActivations, AreKeptWhereTheDriveIsFull) {
  Rig rig(2 * kUnit, Drive::full);
  const std::vector<SavedActivation> all = save_all(rig, 3);
  expect_error(ErrorKind::capacity, {"the drive is full"}, [&] { rig.save(9); });
  expect_error(ErrorKind::capacity, {"the drive is full"}, [&] { rig.save(9); });
  EXPECT_EQ(rig.saved().use().count, 3u);
  EXPECT_EQ(rig.saved().use().nvme_bytes, kUnit);
  take_back(rig, all);
  take_back(rig, save_all(rig, 3));
}

TEST(TieredActivations, SayWhoseBytesTheDriveDidNotGiveBack) {
  Rig rig(2 * kUnit, Drive::one, {{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  const std::vector<SavedActivation> all = save_all(rig, 4);
  expect_error(ErrorKind::io, {"saved0.tier", "saved activation 1", "EIO"}, [&] { rig.expect(all[0], 0); });
  rig.expect(all[0], 0);
}

TEST(TieredActivations, SayWhichOfThemIsDamaged) {
  Rig rig(2 * kUnit);
  const std::vector<SavedActivation> all = save_all(rig, 4);
  rig.damage();
  expect_error(ErrorKind::corrupt, {"corrupt data in", "saved0.tier", "saved activation 1"},
               [&] { rig.expect(all[0], 0); });
  rig.expect(all[3], 3);
}

// --- A budget that changes ---

TEST(TieredActivations, GiveMemoryBackForASmallerBudget) {
  Rig rig(16 * kUnit);
  take_back(rig, save_all(rig, 16));
  EXPECT_EQ(rig.saved().use().host_held_bytes, 16 * kUnit);
  rig.saved().set_most(3 * kUnit + 100, kOther);
  EXPECT_EQ(rig.saved().use().host_held_bytes, 3 * kUnit);
  take_back(rig, save_all(rig, 16));
  EXPECT_EQ(rig.saved().use().host_held_bytes, 3 * kUnit);
  rig.saved().set_most(16 * kUnit, kOther);
  take_back(rig, save_all(rig, 16));
  EXPECT_EQ(rig.saved().use().host_held_bytes, 16 * kUnit);
  const SavedActivation saved = rig.save(1);
  expect_error(ErrorKind::misuse, {"no graph of a pass is left"},
               [&] { rig.saved().set_most(kUnit, kOther); });
  rig.saved().drop(saved);
}

TEST(TieredActivations, MayBeDroppedOnTheirWay) {
  Rig rig(2 * kUnit);
  std::vector<SavedActivation> all = save_all(rig, 6);
  std::vector<std::byte> found(kBytes);
  ASSERT_TRUE(rig.saved().start_load(all[5], found.data(), Room::is_made));
  rig.saved().drop(all[5]);
  rig.saved().drop(all[4]);  // now others are read
  rig.saved().drop(all[3]);
  rig.saved().drop(all[2]);
  all.resize(2);
  take_back(rig, all);
  EXPECT_EQ(rig.saved().use().count, 0u);
}

}  // namespace
}  // namespace terrace::tiered_activations_test
