// What every back end promises of pulls: bytes of the version that was asked for, whatever their owner does
// meanwhile; what is handed over in the order of its rank, with its bytes; an end that waits for readers; and
// one error for all where a rank is lost.
#include <terrace/comm/pull/pulls.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/mutex.h>

#include "comm/rank_worlds.h"

namespace terrace::pulls_test {
namespace {

using testing::RankWorld;
using testing::RankWorldKind;

constexpr uint32_t kRanks = 3, kItems = 4;
constexpr uint64_t kVersions = 12;

uint64_t bytes_of_item(uint32_t item) {
  return 1 + item * 700;
}
std::byte value_of(uint32_t owner, uint32_t item, uint64_t version) {
  return static_cast<std::byte>(owner * 89 + item * 23 + version * 5 + 1);
}

// A rank with items of its own, and what it has heard.
class Shelf final : public PullHost {
 public:
  explicit Shelf(uint32_t rank) : rank_(rank), items_(kItems) {
    for (uint32_t i = 0; i < kItems; ++i) items_[i].resize(bytes_of_item(i));
  }

  // All items become those of the version, when the last is closed that a reader has got: the word that
  // closes it may come after that reader has gone on.
  void write(uint64_t version) {
    while (open_.load() > 0) std::this_thread::yield();
    for (uint32_t i = 0; i < kItems; ++i) std::ranges::fill(items_[i], value_of(rank_, i, version));
    version_.store(version, std::memory_order_release);
  }
  bool open_item(uint32_t item, uint64_t version, std::span<const std::byte>& bytes) override {
    const uint64_t there = version_.load(std::memory_order_acquire);
    EXPECT_LE(there, version) << "a version is asked for before it is overwritten";
    if (there < version) return false;
    if (fails) throw Error(ErrorKind::io, {"cannot read", "an item", "EIO", "look at it"});
    ++open_;
    bytes = items_[item];
    return true;
  }
  void close_item(uint32_t) override { --open_; }
  void hear(const HandedOver& part) override {
    const MutexLock lock(mutex_);
    heard_.push_back(part);
    any_.notify_all();
  }
  void ended(uint32_t) override { ++ended_count; }
  void lost(const std::exception_ptr& failure) override {
    const MutexLock lock(mutex_);
    failure_ = failure;
    any_.notify_all();
  }
  void throw_loss() {
    const MutexLock lock(mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }
  // The next part, or none where a rank is lost.
  bool next(HandedOver& part) {
    const MutexLock lock(mutex_);
    any_.wait(mutex_, [&] { return taken_ < heard_.size() || failure_ != nullptr; });
    if (taken_ == heard_.size()) return false;
    part = heard_[taken_++];
    return true;
  }

  std::atomic<bool> fails{false};
  std::atomic<uint32_t> ended_count{0};

 private:
  const uint32_t rank_;
  std::vector<std::vector<std::byte>> items_;
  std::atomic<uint64_t> version_{0};
  std::atomic<int> open_{0};
  Mutex mutex_;
  std::condition_variable_any any_;
  std::vector<HandedOver> heard_ TERRACE_GUARDED_BY(mutex_);
  size_t taken_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
};

class PullLaws : public ::testing::TestWithParam<RankWorldKind> {};

INSTANTIATE_TEST_SUITE_P(BackEnds, PullLaws, ::testing::ValuesIn(testing::rank_world_kinds()),
                         [](const auto& kind) { return kind.param.name; });

void meet(Communicator& rank) {
  const std::byte mine{1};
  std::array<std::byte, kRanks> all{};
  rank.ballot(Lane::control, {&mine, 1}, all);
}

void read(Pulls& pulls, uint32_t owner, uint32_t item, uint64_t version) {
  std::vector<std::byte> got(bytes_of_item(item));
  Event done;
  done.begin();
  pulls.read(owner, item, version, got, nullptr, done);
  done.wait();
  EXPECT_EQ(std::ranges::count(got, value_of(owner, item, version)), static_cast<ptrdiff_t>(got.size()));
}

// Each rank reads what it likes, as often as it likes, and writes when all have come.
TEST_P(PullLaws, ReadTheVersionThatIsAskedFor) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
    Shelf shelf(rank.rank());
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    std::minstd_rand random(rank.rank() + 1);
    for (uint64_t version = 1; version <= kVersions; ++version) {
      shelf.write(version);
      pulls.wake();
      for (uint64_t r = random() % 7; r > 0; --r)
        read(pulls, (rank.rank() + 1 + random() % (kRanks - 1)) % kRanks, random() % kItems, version);
      meet(rank);
    }
    pulls.end();
    EXPECT_EQ(shelf.ended_count, kRanks - 1);
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

// The last rank reads what the others have, though their threads have come to the end.
TEST_P(PullLaws, EndWhenTheLastReaderHas) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  for (uint32_t turn = 0; turn < 2; ++turn) {
    const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
      Shelf shelf(rank.rank());
      shelf.write(1);
      Pulls& pulls = *rank.pulls();
      pulls.begin(shelf);
      if (rank.rank() == 2) {
        for (uint32_t i = 0; i < 20; ++i) read(pulls, i % 2, i % kItems, 1);
      }
      pulls.end();
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

// What nobody waits for comes all the same, or the memory for it would never be free.
TEST_P(PullLaws, EndWhenWhatWasAskedForHasCome) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
    Shelf shelf(rank.rank());
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    const uint32_t owner = (rank.rank() + 1) % kRanks;
    std::vector<std::byte> got(bytes_of_item(3));
    Event done;
    done.begin();
    pulls.read(owner, 3, 1, got, nullptr, done);
    shelf.write(1);
    pulls.end();
    EXPECT_TRUE(done.done());
    EXPECT_EQ(std::ranges::count(got, value_of(owner, 3, 1)), static_cast<ptrdiff_t>(got.size()));
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

// Words and bytes of each rank come in its order, whatever the bytes wait for.
TEST_P(PullLaws, HandOverInOrder) {
  constexpr uint32_t kParts = 30;
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
    Shelf shelf(rank.rank());
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    std::vector<std::vector<std::byte>> memory(kRanks * kParts);
    Event taken, ready;
    taken.begin(kRanks * kParts);
    ready.begin();
    for (uint32_t p = 0; p < kParts; ++p) {
      for (uint32_t to = 0; to < kRanks; ++to) {
        std::vector<std::byte>& bytes = memory[p * kRanks + to];
        bytes.assign(1 + p * 37, value_of(rank.rank(), p, to));
        pulls.hand_over(to, {p, to}, bytes, p % 5 == 4 ? &ready : nullptr, &taken);
        pulls.hand_over(to, {p, to, 1}, {}, nullptr, nullptr);
      }
    }
    std::array<uint32_t, kRanks> next{};
    for (uint32_t got = 0; got < 2 * kParts * kRanks; ++got) {
      if (got == 2 * 4 * kRanks) ready.complete_one();
      HandedOver part;
      ASSERT_TRUE(shelf.next(part));
      EXPECT_EQ(part.words, (PullWords{next[part.from] / 2, rank.rank(), next[part.from] % 2}));
      ++next[part.from];
      if (part.words[2] == 1) continue;
      std::vector<std::byte> bytes(part.bytes);
      Event done;
      done.begin();
      pulls.take(part, bytes, done);
      done.wait();
      const std::byte value = value_of(part.from, static_cast<uint32_t>(part.words[0]), rank.rank());
      EXPECT_EQ(std::ranges::count(bytes, value), 1 + static_cast<ptrdiff_t>(part.words[0]) * 37);
    }
    taken.wait();
    pulls.end();
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST_P(PullLaws, FailOnAllWhereOneIsLost) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [&](Communicator& rank) {
    Shelf shelf(rank.rank());
    shelf.write(1);
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    if (rank.rank() == 1) {
      read(pulls, 2, 3, 1);
      world->lose(1, "it has had enough");
      return pulls.end();
    }
    try {
      read(pulls, 1, 2, 2);  // never to be
    } catch (...) {
      pulls.end();
      throw;
    }
  });
  EXPECT_EQ(failures[1], "");
  for (const uint32_t r : {0u, 2u}) {
    EXPECT_NE(failures[r].find("rank 1"), std::string::npos) << failures[r];
    EXPECT_NE(failures[r].find("it has had enough"), std::string::npos) << failures[r];
  }
}

TEST_P(PullLaws, FailOnAllWhereAnOwnerCannotAnswer) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
    Shelf shelf(rank.rank());
    shelf.fails = rank.rank() == 0;
    shelf.write(1);
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    Event done;
    done.begin();
    std::vector<std::byte> bytes(bytes_of_item(1));
    pulls.read((rank.rank() + 1) % kRanks, 1, 1, bytes, nullptr, done);
    done.wait_done();
    pulls.end();
    shelf.throw_loss();  // what the others are told
  });
  EXPECT_NE(failures[2].find("rank 0"), std::string::npos) << failures[2];
  EXPECT_NE(failures[2].find("EIO"), std::string::npos) << failures[2];
}

TEST_P(PullLaws, FailBehindWhatHasFailed) {
  const std::unique_ptr<RankWorld> world = GetParam().make({.ranks = kRanks});
  const std::vector<std::string> failures = testing::on_every_rank(*world, [](Communicator& rank) {
    Shelf shelf(rank.rank());
    shelf.write(1);
    Pulls& pulls = *rank.pulls();
    pulls.begin(shelf);
    Event before, done, nothing, taken;
    before.begin(), done.begin(), nothing.begin(), taken.begin();
    std::vector<std::byte> bytes(bytes_of_item(1));
    pulls.read((rank.rank() + 1) % kRanks, 1, 1, bytes, &before, done);
    pulls.read((rank.rank() + 1) % kRanks, 1, 1, {}, &before, nothing);
    pulls.hand_over((rank.rank() + 1) % kRanks, {}, bytes, &before, &taken);
    before.complete_one(std::make_exception_ptr(std::runtime_error("a copy")));
    for (const Event* const event : {&done, &nothing, &taken})
      EXPECT_THROW(event->wait(), std::runtime_error);
    pulls.end();
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace terrace::pulls_test
