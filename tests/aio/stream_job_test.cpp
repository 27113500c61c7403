// The measured stream: which blocks are moved, how many, until when, and what is counted; and the histogram.
#include <algorithm>
#include <cmath>
#include <random>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/aio/stream_job.h>
#include <terrace/base/clock.h>

#include "aio/aio_support.h"

namespace terrace::io::stream_job_test {
namespace {

TEST(LatencyHistogram, FindsPercentilesWithinASixtyFourth) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(50), 0u);
  EXPECT_EQ(histogram.min_ns(), 0u);
  std::vector<uint64_t> values;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(random() >> (20 + random() % 44));
    histogram.add(values.back());
  }
  std::sort(values.begin(), values.end());
  EXPECT_EQ(histogram.count(), values.size());
  EXPECT_EQ(histogram.min_ns(), values.front());
  EXPECT_EQ(histogram.max_ns(), values.back());
  for (const double percent : {0.0, 1.0, 25.0, 50.0, 99.0, 99.99, 100.0}) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
    const uint64_t exact = values[std::max<size_t>(rank, 1) - 1];
    const uint64_t found = histogram.percentile_ns(percent);
    EXPECT_GE(found, exact) << percent;
    EXPECT_LE(found - exact, exact / 64) << percent;
  }
  double mean = 0;
  for (const uint64_t value : values) mean += static_cast<double>(value) / static_cast<double>(values.size());
  EXPECT_NEAR(histogram.mean_ns() / mean, 1, 1e-9);
  LatencyHistogram two;
  two.add(10);
  two.add(30);
  EXPECT_DOUBLE_EQ(two.mean_ns(), 20);
  EXPECT_DOUBLE_EQ(two.stddev_ns(), 10);
}

constexpr uint64_t kBlock = 4096;
constexpr uint32_t kSlots = 4;
constexpr uint64_t kBlocks = 21;

// Remembers what passes, and lets nothing but that be changed.
class WatchingEngine final : public EngineDecorator {
 public:
  explicit WatchingEngine(std::unique_ptr<Engine> base) : EngineDecorator(std::move(base)) {}
  std::vector<Request> seen;
  size_t batches = 0;

  void submit(std::span<const Request> requests) override {
    ++batches;
    seen.insert(seen.end(), requests.begin(), requests.end());
    base().submit(requests);
  }
};

class RunStream : public ::testing::Test {
 protected:
  RunStream() : engine_(engine_of(EngineKind::threads, kSlots, kBlock)) { out_.fill_pattern(1); }
  StreamResult run_it(const StreamOptions& options) {
    StreamOptions whole = options;
    whole.block_bytes = kBlock;
    whole.region_bytes = kBlocks * kBlock;
    engine_.seen.clear();
    const StreamResult result = run_stream(engine_, ring_, file_.fd(), whole, clock_);
    EXPECT_EQ(engine_.in_flight(), 0u);
    EXPECT_EQ(ring_.free_count(), kSlots);
    return result;
  }
  std::vector<uint64_t> blocks_seen(OpKind kind) const {
    std::vector<uint64_t> blocks;
    for (const Request& request : engine_.seen) {
      if (request.kind == kind) blocks.push_back(request.offset / kBlock);
    }
    return blocks;
  }
  void lay_out() { run_it({.kind = StreamKind::write, .io_bytes = kBlocks * kBlock}); }

  ScratchFolder folder_;
  File file_ = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  const Bytes out_{kBlock};
  RingBuffer ring_{RingOptions{.slot_bytes = kBlock, .slot_count = kSlots}};
  SteadyClock clock_;
  WatchingEngine engine_;
};

TEST_F(RunStream, MovesEachBlockInTurnAndBeginsAgain) {
  lay_out();
  const StreamResult result = run_it({.kind = StreamKind::read, .io_bytes = (kBlocks + 2) * kBlock});
  std::vector<uint64_t> expected;
  for (uint64_t i = 0; i < kBlocks + 2; ++i) expected.push_back(i % kBlocks);
  EXPECT_EQ(blocks_seen(OpKind::read), expected);
  EXPECT_EQ(result.read.operations, kBlocks + 2);
  EXPECT_EQ(result.read.bytes, (kBlocks + 2) * kBlock);
  EXPECT_EQ(result.write.operations, 0u);
  EXPECT_EQ(result.read.completion.count(), kBlocks + 2);
  EXPECT_FALSE(result.failure);
  EXPECT_GT(result.elapsed_ns, 0u);
}

TEST_F(RunStream, InNoOrderEveryBlockComesOnceBeforeAnyComesAgain) {
  lay_out();
  for (const uint64_t seed : {1u, 2u, 77u}) {
    run_it({.kind = StreamKind::read, .random = true, .io_bytes = 2 * kBlocks * kBlock, .seed = seed});
    std::vector<uint64_t> blocks = blocks_seen(OpKind::read);
    ASSERT_EQ(blocks.size(), 2 * kBlocks);
    EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.begin() + kBlocks));
    for (const auto begin : {blocks.begin(), blocks.begin() + kBlocks}) {
      std::sort(begin, begin + kBlocks);
      for (uint64_t i = 0; i < kBlocks; ++i)
        EXPECT_EQ(begin[static_cast<std::ptrdiff_t>(i)], i) << "seed " << seed;
    }
  }
}

TEST_F(RunStream, MixesTheDirectionsEvenly) {
  lay_out();
  const StreamResult result =
      run_it({.kind = StreamKind::mixed, .read_percent = 25, .io_bytes = 200 * kBlock});
  EXPECT_EQ(result.read.operations, 50u);
  EXPECT_EQ(result.write.operations, 150u);
  for (size_t i = 0; i + 4 <= engine_.seen.size(); i += 4) {
    const auto is_read = [](const Request& request) { return request.kind == OpKind::read; };
    const auto first = engine_.seen.begin() + static_cast<std::ptrdiff_t>(i);
    EXPECT_EQ(std::count_if(first, first + 4, is_read), 1) << i;
  }
}

TEST_F(RunStream, AnUpdateWritesEachBlockBackWhereItWasFromWhereItLies) {
  lay_out();
  const StreamResult result = run_it({.kind = StreamKind::update, .io_bytes = 2 * kBlocks * kBlock});
  EXPECT_EQ(result.read.operations, kBlocks);
  EXPECT_EQ(result.write.operations, kBlocks);
  for (auto write = engine_.seen.begin(); write != engine_.seen.end(); ++write) {
    if (write->kind != OpKind::write) continue;
    const auto read = std::find_if(engine_.seen.begin(), write, [&](const Request& request) {
      return request.kind == OpKind::read && request.offset == write->offset;
    });
    ASSERT_NE(read, write) << "block " << write->offset / kBlock << " was not read before";
    EXPECT_EQ(read->data, write->data);
  }
}

// The clock stands still; every look at it takes a millisecond.
class TickingClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_ += 1'000'000; }

 private:
  mutable uint64_t now_ns_ = 0;
};

TEST_F(RunStream, EndsWhenItsTimeIsOver) {
  lay_out();
  const TickingClock clock;
  const StreamResult result =
      run_stream(engine_, ring_, file_.fd(),
                 {.block_bytes = kBlock, .region_bytes = kBlocks * kBlock, .runtime_ns = 200'000'000}, clock);
  EXPECT_GE(result.elapsed_ns, 200'000'000u);
  EXPECT_LT(result.elapsed_ns, 250'000'000u);
  EXPECT_GT(result.read.operations, kSlots);
}

TEST_F(RunStream, TheFirstBurstIsOneBatchOfEverySlot) {
  lay_out();
  engine_.batches = 0;
  run_it({.kind = StreamKind::read, .io_bytes = kSlots * kBlock});
  EXPECT_EQ(engine_.batches, 1u);
  EXPECT_EQ(engine_.seen.size(), kSlots);
}

TEST_F(RunStream, EndsWithTheFirstFailure) {
  file_.resize(3 * kBlock);
  const StreamResult result = run_it({.kind = StreamKind::read, .io_bytes = 1000 * kBlock});
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->completion.error, kEndOfFile);
  EXPECT_GE(result.failure->request.offset, 3 * kBlock);
  EXPECT_LT(engine_.seen.size(), 3 + 3 * kSlots);
  EXPECT_EQ(result.read.operations, 3u);
}

}  // namespace
}  // namespace terrace::io::stream_job_test
