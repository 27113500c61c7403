// A store on two paths under seeded operations, failures and crashes, against a model that is a map; and
// under several threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "block_store_rig.h"

namespace terrace::block_store_model_test {
namespace {

constexpr uint64_t kBlock = BlockStoreRig::kBlock;
constexpr uint32_t kBlocks = 12;

BlockStoreOptions options(uint64_t spare) {
  return {.name = "records",
          .block_bytes = kBlock,
          .chunk_bytes = {kBlocks * kBlock - 4096},
          .spare_slots = spare,
          .in_place = false};
}

// What each block holds: the seed of its bytes; nothing: never written.
using Model = std::map<uint32_t, uint64_t>;

class ModelRun : public BlockStoreRig {
 public:
  explicit ModelRun(uint64_t seed) : BlockStoreRig(2), random_(seed) {
    make_engine({{.kind = io::FaultKind::fail, .bytes = 4096, .probability = 0.015, .seed = seed}});
    store_ = make_store(options(kSpare));
  }

  void step() {
    const uint64_t what = random_() % 100;
    if (what < 45)
      write_block();
    else if (what < 70)
      read_block();
    else if (what < 78)
      take_snapshot();
    else if (what < 86)
      drop_snapshot();
    else if (what < 92)
      write_for_a_snapshot();
    else if (what < 97)
      commit_commit();
    else
      crash();
    store_->check();
  }
  uint64_t crashes() const { return crashes_; }
  uint64_t failures() const { return failures_; }

 private:
  struct Held {
    BlockStore::Snapshot snapshot;
    Model model;
  };
  static constexpr uint64_t kSpare = 5 * kBlocks;

  uint32_t any_block() { return static_cast<uint32_t>(random_() % kBlocks); }
  // Whether it was written; otherwise nothing has changed.
  std::optional<BlockStore::Write> try_write(uint32_t block, uint64_t seed) {
    try {
      return write(*store_, ChunkId{0}, block, seed);
    } catch (const Error& error) {
      ++failures_;
      EXPECT_TRUE(error.kind() == ErrorKind::io || store_->free_slot_count() == 0) << error.what();
      return std::nullopt;
    }
  }
  void write_block() {
    const uint32_t block = any_block();
    const uint64_t seed = random_();
    if (try_write(block, seed)) model_[block] = seed;
  }
  template <typename Read>
  void expect_holds(const Model& model, uint32_t block, bool written, Read read) {
    const auto expected = model.find(block);
    ASSERT_EQ(written, expected != model.end());
    if (!written) return;
    try {
      EXPECT_TRUE(read(expected->second)) << "block " << block;
    } catch (const Error& error) {
      ++failures_;
      EXPECT_EQ(error.kind(), ErrorKind::io) << error.what();  // planned
    }
  }
  void read_block() {
    const uint32_t block = any_block();
    expect_holds(model_, block, store_->written(ChunkId{0}, block),
                 [&](uint64_t seed) { return holds(*store_, ChunkId{0}, block, seed); });
    for (const Held& held : held_) {
      expect_holds(held.model, block, store_->written(held.snapshot, ChunkId{0}, block),
                   [&](uint64_t seed) { return holds(*store_, held.snapshot, ChunkId{0}, block, seed); });
    }
  }
  void take_snapshot() {
    if (held_.size() < 4) held_.push_back({store_->snapshot(), model_});
  }
  void drop_snapshot() {
    if (!held_.empty()) held_.erase(held_.begin() + static_cast<ptrdiff_t>(random_() % held_.size()));
  }
  void write_for_a_snapshot() {
    const uint32_t block = any_block();
    const uint64_t seed = random_();
    if (held_.empty()) return;
    const std::optional<BlockStore::Write> written = try_write(block, seed);
    if (!written) return;
    held_.back().snapshot.adopt(*written);
    model_[block] = held_.back().model[block] = seed;
  }
  void commit_commit() {
    BlockStore::Snapshot snapshot = store_->snapshot();
    commit(*store_, snapshot);
    commit_ = {std::move(snapshot), model_};
  }
  // Everything in memory is gone; the files are as they are.
  void crash() {
    if (!commit_.snapshot) return;
    ++crashes_;
    held_.clear();
    const Model committed = commit_.model;
    commit_ = {};
    store_.reset();
    space->keep_files(true);
    space.reset();
    open_space(TierStart::resume);
    store_ = std::make_unique<BlockStore>(*space, options(kSpare),
                                          space->read_commit(space->commits().back().commit).stores[0],
                                          std::span<const StoreLayout>(), log);
    model_ = committed;
    commit_ = {store_->snapshot(), model_};
    for (uint32_t b = 0; b < kBlocks; ++b) {
      expect_holds(model_, b, store_->written(ChunkId{0}, b),
                   [&](uint64_t seed) { return holds(*store_, ChunkId{0}, b, seed); });
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<BlockStore> store_;
  Model model_;
  Held commit_;
  std::vector<Held> held_;
  uint64_t crashes_ = 0;
  uint64_t failures_ = 0;
};

TEST(BlockStoreModel, HoldsWhatANaiveModelHolds) {
  uint64_t crashes = 0, failures = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    ModelRun run(seed);
    for (int step = 0; step < 300; ++step) {
      run.step();
      if (::testing::Test::HasFailure()) FAIL() << "step " << step;
    }
    crashes += run.crashes();
    failures += run.failures();
  }
  EXPECT_GT(crashes, 10u);
  EXPECT_GT(failures, 5u);
}

// Without an engine: what the system does is not the matter here.
void move(const io::Request& request) {
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t moved = request.kind == io::OpKind::read
                            ? pread(request.fd, request.data, request.bytes, offset)
                            : pwrite(request.fd, request.data, request.bytes, offset);
  ASSERT_EQ(moved, static_cast<ssize_t>(request.bytes));
}

// Writers of distinct blocks, and a committer beside them: its snapshots stay as they are.
TEST(BlockStoreModel, IsUsedByWritersAndACommitterAtOnce) {
  BlockStoreRig rig(2);
  const auto store = rig.make_store(options(2 * kBlocks));
  for (uint32_t b = 0; b < kBlocks; ++b) rig.write(*store, ChunkId{0}, b, b);
  std::atomic<uint32_t> writing{3};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const PageMapping memory = PageMapping::populated(kBlock, false, "a test");
      for (uint32_t round = 0; round < 60; ++round) {
        for (uint32_t b = t; b < kBlocks; b += 3) {
          const auto bytes = memory.memory().first(store->block_bytes(ChunkId{0}, b));
          fill_random(bytes, round * 1000 + b);
          BlockStore::Write write;
          while (!store->begin_write(ChunkId{0}, b, bytes, write)) std::this_thread::yield();
          move(write.request);
          ASSERT_EQ(store->end_write(write, {0, write.request.bytes, 0}), BlockStore::WriteEnd::done);
          const io::Request read = store->read_request(ChunkId{0}, b, bytes);
          move(read);
          store->end_read(ChunkId{0}, b, read, {0, read.bytes, 0});
        }
      }
      --writing;
    });
  }
  threads.emplace_back([&] {
    const PageMapping memory = PageMapping::populated(kBlock, false, "a test");
    uint64_t commits = 0;
    while (writing > 0 || commits == 0) {
      const BlockStore::Snapshot snapshot = store->snapshot();
      store->sync();
      const StoreLayout layout = store->layout_of(snapshot);
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const auto bytes = memory.memory().first(store->block_bytes(ChunkId{0}, b));
        const io::Request read = store->read_request(snapshot, ChunkId{0}, b, bytes);
        move(read);
        store->end_read(snapshot, ChunkId{0}, b, read, {0, read.bytes, 0});
      }
      ASSERT_EQ(layout, store->layout_of(snapshot));
      store->check();
      ++commits;
    }
  });
  for (std::thread& thread : threads) thread.join();
  store->check();
  EXPECT_EQ(store->free_slot_count(), store->file_bytes() / kBlock - kBlocks);
  for (uint32_t b = 0; b < kBlocks; ++b) EXPECT_TRUE(rig.holds(*store, ChunkId{0}, b, 59 * 1000 + b));
}

}  // namespace
}  // namespace terrace::block_store_model_test
