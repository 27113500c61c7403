#include "support/fault_engine.h"

#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "aio/aio_support.h"
#include "support/sanitized.h"
#include "support/simulated_time.h"

namespace terrace::io::fault_engine_test {
namespace {

constexpr uint64_t kBlock = 64 * kKiB;

class FaultEngineTest : public ::testing::Test {
 protected:
  FaultEngine make(std::vector<Fault> plan) {
    return FaultEngine(engine_of(EngineKind::threads, 4, kBlock), std::move(plan), simulated_time(clock_));
  }
  ScratchFolder folder_;
  File file_ = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  FakeClock clock_;
  Collector collector_;
};

TEST_F(FaultEngineTest, IsTransparentWhereNothingIsPlanned) {
  FaultEngine engine = make({});
  const Bytes out(5 * kBlock + 3);
  out.fill_pattern(1);
  const Bytes in(out.size());
  EXPECT_EQ(run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, out.span(), 5)).error, 0);
  const Completion completion =
      run(engine, collector_, collector_.to(OpKind::read, file_.fd(), 0, in.span(), 6));
  EXPECT_EQ(completion.error, 0);
  EXPECT_EQ(completion.tag, 6u);
  EXPECT_TRUE(in == out);
  EXPECT_EQ(engine.faults_done(), 0u);
}

TEST_F(FaultEngineTest, FailsExactlyTheRequestThatWasPlanned) {
  FaultEngine engine = make({{.index = 2, .kind = FaultKind::fail, .error = EIO}});
  const Bytes bytes(4096);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back(collector_.to(OpKind::write, file_.fd(), i * 4096, bytes.span(), i));
  }
  engine.submit(requests);
  EXPECT_EQ(engine.in_flight(), 5u);
  EXPECT_EQ(engine.wait(5), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(collector_.of(i).error, i == 2 ? EIO : 0);
  EXPECT_EQ(engine.faults_done(), 1u);
}

TEST_F(FaultEngineTest, ADiskThatFillsUpTakesThePrefix) {
  FaultEngine engine = make({{.index = 0, .kind = FaultKind::fail, .bytes = 5000, .error = ENOSPC}});
  const Bytes bytes(3 * kBlock);
  const Completion completion =
      run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span()));
  EXPECT_EQ(completion.error, ENOSPC);
  EXPECT_EQ(completion.bytes, 5000u);
  EXPECT_EQ(file_.size_bytes(), 5000u);
}

TEST_F(FaultEngineTest, ATornWriteClaimsWhatItDidNotDo) {
  FaultEngine engine = make({{.index = 0, .kind = FaultKind::torn_write, .bytes = kBlock + 1}});
  const Bytes bytes(3 * kBlock);
  const Completion completion =
      run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span()));
  EXPECT_EQ(completion.error, 0);
  EXPECT_EQ(completion.bytes, bytes.size());
  EXPECT_EQ(file_.size_bytes(), kBlock + 1);
}

TEST_F(FaultEngineTest, ACorruptReadDiffersInOneBit) {
  FaultEngine engine = make({{.index = 1, .kind = FaultKind::corrupt_read, .bytes = 12345}});
  const Bytes out(kBlock);
  out.fill_pattern(2);
  const Bytes in(kBlock);
  EXPECT_EQ(run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, out.span())).error, 0);
  EXPECT_EQ(run(engine, collector_, collector_.to(OpKind::read, file_.fd(), 0, in.span())).error, 0);
  EXPECT_FALSE(in == out);
  in[12345] ^= std::byte{1};
  EXPECT_TRUE(in == out);
}

TEST_F(FaultEngineTest, ADelayedRequestCompletesOnlyWhenTheClockHasPassed) {
  FaultEngine engine = make({{.index = 0, .kind = FaultKind::delay, .delay_ns = 1000}});
  const Bytes bytes(4096);
  const std::array requests = {collector_.to(OpKind::write, file_.fd(), 0, bytes.span(), 0),
                               collector_.to(OpKind::write, file_.fd(), 4096, bytes.span(), 1)};
  engine.submit(requests);
  EXPECT_EQ(engine.wait(1), 1u);
  EXPECT_EQ(collector_.completions.front().tag, 1u);
  clock_.advance(999);
  EXPECT_EQ(engine.poll(), 0u);
  EXPECT_EQ(engine.in_flight(), 1u);
  clock_.advance(1);
  // The write below may still be on its way.
  while (engine.in_flight() > 0) engine.poll();
  EXPECT_EQ(clock_.now_ns(), 1000u);
  EXPECT_EQ(collector_.completions.size(), 2u);
}

TEST_F(FaultEngineTest, WaitingForADelayedRequestLetsSimulatedTimePass) {
  FaultEngine engine = make({{.index = kEveryIndex, .kind = FaultKind::delay, .delay_ns = 7000}});
  const Bytes bytes(4096);
  const Request request = collector_.to(OpKind::write, file_.fd(), 0, bytes.span());
  EXPECT_EQ(run(engine, collector_, request).error, 0);
  EXPECT_EQ(clock_.now_ns(), 7000u);
}

TEST_F(FaultEngineTest, SeveralFaultsMayMeetInOneRequest) {
  FaultEngine engine = make({{.index = 0, .kind = FaultKind::fail, .error = EIO},
                             {.index = 0, .kind = FaultKind::delay, .delay_ns = 50}});
  const Bytes bytes(4096);
  const Request request = collector_.to(OpKind::write, file_.fd(), 0, bytes.span());
  engine.submit({&request, 1});
  EXPECT_EQ(engine.poll(), 0u);
  clock_.advance(50);
  EXPECT_EQ(engine.poll(), 1u);
  EXPECT_EQ(collector_.completions.front().error, EIO);
}

TEST_F(FaultEngineTest, AWokenWaitReturns) {
  FaultEngine engine = make({{.index = 0, .kind = FaultKind::delay, .delay_ns = 50}});
  const Bytes bytes(4096);
  const Request request = collector_.to(OpKind::write, file_.fd(), 0, bytes.span());
  engine.submit({&request, 1});
  engine.wake();
  EXPECT_EQ(engine.wait(1), 0u);
  EXPECT_EQ(engine.wait(1), 1u);
}

TEST_F(FaultEngineTest, TheDestructorCompletesWhatIsHeld) {
  const Bytes bytes(4096);
  {
    FaultEngine engine = make({{.index = kEveryIndex, .kind = FaultKind::delay, .delay_ns = 50},
                               {.index = 1, .kind = FaultKind::fail}});
    const std::array requests = {collector_.to(OpKind::write, file_.fd(), 0, bytes.span(), 0),
                                 collector_.to(OpKind::write, file_.fd(), 0, bytes.span(), 1)};
    engine.submit(requests);
  }
  EXPECT_EQ(collector_.completions.size(), 2u);
}

TEST_F(FaultEngineTest, AFaultCountsOnlyWhatItIsAbout) {
  const File other = File::open(folder_ / "other", {.access = FileAccess::read_write, .create = true});
  FaultEngine engine = make({{.index = 1, .operation = OpKind::write, .file = "other"}});
  const Bytes bytes(4096);
  std::vector<Request> requests = {collector_.to(OpKind::write, other.fd(), 0, bytes.span(), 0),
                                   collector_.to(OpKind::read, other.fd(), 0, bytes.span(), 1),
                                   collector_.to(OpKind::write, file_.fd(), 0, bytes.span(), 2),
                                   collector_.to(OpKind::write, other.fd(), 0, bytes.span(), 3),
                                   collector_.to(OpKind::write, other.fd(), 0, bytes.span(), 4)};
  for (const Request& request : requests) run(engine, collector_, request);
  EXPECT_EQ(engine.faults_done(), 1u);
  collector_.completions.clear();
  FaultEngine again = make({{.index = 1, .operation = OpKind::write, .path = folder_ / "other"}});
  for (const Request& request : requests) {
    again.submit({&request, 1});
    again.wait(1);
  }
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(collector_.of(i).error, i == 3 ? EIO : 0) << i;
}

TEST_F(FaultEngineTest, AFaultMayComeBackEveryFewRequestsFromSomeOne) {
  FaultEngine engine = make({{.from_index = 2, .every = 3}});
  const Bytes bytes(4096);
  for (uint64_t i = 0; i < 12; ++i) {
    const int error =
        run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span())).error;
    EXPECT_EQ(error, i == 4 || i == 7 || i == 10 ? EIO : 0) << i;
  }
}

TEST_F(FaultEngineTest, AFaultOfSomeProbabilityIsDecidedByItsSeed) {
  const auto failed = [&](uint64_t seed) {
    FaultEngine engine = make({{.probability = 0.25, .seed = seed}});
    const Bytes bytes(512);
    std::set<uint64_t> numbers;
    for (uint64_t i = 0; i < 400; ++i) {
      if (run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span())).error != 0)
        numbers.insert(i);
    }
    return numbers;
  };
  const std::set<uint64_t> first = failed(1);
  EXPECT_EQ(first, failed(1));
  EXPECT_NE(first, failed(2));
  EXPECT_GT(first.size(), 70u);
  EXPECT_LT(first.size(), 130u);
}

TEST_F(FaultEngineTest, ADiskHasRoomForSoMuchAndNoMore) {
  FaultEngine engine = make({{.kind = FaultKind::full, .bytes = 10'000}});
  const Bytes bytes(4096);
  const auto write = [&] {
    return run(engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span()));
  };
  EXPECT_EQ(write().error, 0);
  EXPECT_EQ(write().error, 0);
  EXPECT_EQ(engine.faults_done(), 0u);
  const Completion last = write();
  EXPECT_EQ(last.error, ENOSPC);
  EXPECT_EQ(last.bytes, 10'000u - 8192);
  EXPECT_EQ(write().bytes, 0u);
  EXPECT_EQ(run(engine, collector_, collector_.to(OpKind::read, file_.fd(), 0, bytes.span())).error, 0);
}

TEST_F(FaultEngineTest, ARateIsSharedByEverythingOnItsPathAndMayChange) {
  const File other = File::open(folder_ / "other", {.access = FileAccess::read_write, .create = true});
  const auto rate = [&](const char* file, uint64_t bytes_per_second, uint64_t from_index, uint64_t from_ns) {
    return Fault{.kind = FaultKind::rate_limit,
                 .bytes_per_second = bytes_per_second,
                 .path = folder_ / file,
                 .from_index = from_index,
                 .from_ns = from_ns};
  };
  // 4096 bytes take a millisecond; four from the fifth request on. Another file has another rate, by time.
  FaultEngine engine = make({rate("file", 4'096'000, 0, 0), rate("file", 1'024'000, 4, 0),
                             rate("other", 40'960'000, 0, 0), rate("other", 4'096'000, 0, 5'000'000)});
  const Bytes bytes(8 * 4096);  // no two requests in flight have the same
  uint64_t submitted = 0;
  const auto submit = [&](const File& file, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const Request request = collector_.to(i % 2 == 0 ? OpKind::write : OpKind::read, file.fd(), 0,
                                            bytes.span().subspan(submitted++ % 8 * 4096, 4096));
      engine.submit({&request, 1});
    }
  };
  submit(file_, 4);
  submit(other, 4);
  EXPECT_EQ(engine.wait(4), 4u);
  EXPECT_EQ(clock_.now_ns(), 400'000u) << "the faster file is not held up";
  EXPECT_EQ(engine.wait(4), 4u);
  EXPECT_EQ(clock_.now_ns(), 4'000'000u);
  submit(file_, 2);
  EXPECT_EQ(engine.wait(2), 2u);
  EXPECT_EQ(clock_.now_ns(), 12'000'000u);
  submit(other, 2);
  EXPECT_EQ(engine.wait(2), 2u);
  EXPECT_EQ(clock_.now_ns(), 14'000'000u);
  EXPECT_EQ(engine.faults_done(), 0u) << "slow is not wrong";
}

TEST_F(FaultEngineTest, SeveralEnginesMayShareOnePlan) {
  FaultPlan plan({{.index = 1}}, simulated_time(clock_));
  FaultEngine first(engine_of(EngineKind::threads), plan);
  FaultEngine second(engine_of(EngineKind::threads), plan);
  const Bytes bytes(4096);
  const Request write = collector_.to(OpKind::write, file_.fd(), 0, bytes.span());
  EXPECT_EQ(run(first, collector_, write).error, 0);
  EXPECT_EQ(run(second, collector_, write).error, EIO);
  EXPECT_EQ(run(first, collector_, write).error, 0);
}

// In real time: were the wait not woken, this would take an hour.
TEST(FaultEngine, AWokenWaitForADelayedRequestReturnsAtOnce) {
  ScratchFolder folder;
  const File file = File::open(folder / "file", {.access = FileAccess::read_write, .create = true});
  const Bytes bytes(4096);
  for (const bool below : {false, true}) {
    FaultTime time = real_time();
    std::atomic<bool> over{false};
    const std::vector<Fault> plan = {{.kind = FaultKind::delay, .delay_ns = 3'600'000'000'000}};
    std::unique_ptr<Engine> engine;
    const EngineOptions options{.kind = EngineKind::threads};
    struct Hurried final : Clock {
      explicit Hurried(std::atomic<bool>& end) : over(end) {}
      uint64_t now_ns() const override { return steady.now_ns() + (over.load() ? 3'600'000'000'000u : 0u); }
      std::atomic<bool>& over;
      SteadyClock steady;
    } hurried(over);
    time.clock = &hurried;
    if (below) {
      engine =
          make_engine_over(std::make_unique<FaultTransport>(make_transport(options), plan, time), options);
    } else {
      engine = std::make_unique<FaultEngine>(engine_of(EngineKind::threads), plan, time);
    }
    Collector collector;
    const Request request = collector.to(OpKind::write, file.fd(), 0, bytes.span());
    engine->submit({&request, 1});
    std::thread waker([&] { engine->wake(); });
    EXPECT_EQ(engine->wait(1), 0u);
    waker.join();
    over.store(true);
    EXPECT_EQ(engine->wait(1), 1u);
  }
}

// Below the common engine, over the kernel's own transports.
class FaultTransportTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  std::unique_ptr<Engine> make(std::vector<Fault> plan) {
    const EngineOptions options{.kind = GetParam(), .queue_depth = 4, .block_bytes = kBlock};
    return make_engine_over(
        std::make_unique<FaultTransport>(make_transport(options), std::move(plan), simulated_time(clock_)),
        options);
  }
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << probe.reason.text;
  }
  ScratchFolder folder_;
  File file_ = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  FakeClock clock_;
  Collector collector_;
};

TEST_P(FaultTransportTest, ShortAndInterruptedTransfersAreHidden) {
  for (uint64_t seed = 1; seed <= 20; seed += testing::kOneIn) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Fault> plan = {
        {.kind = FaultKind::short_transfer, .bytes = 1000 + seed * 777, .probability = 0.4, .seed = seed}};
    for (const int error : {EINTR, EAGAIN})
      plan.push_back(
          {.error = error, .probability = 0.2, .seed = seed * 1000 + static_cast<uint64_t>(error)});
    const std::unique_ptr<Engine> engine = make(plan);
    const Bytes out(10 * kBlock + 321);
    out.fill_pattern(seed);
    const Bytes in(out.size());
    EXPECT_EQ(run(*engine, collector_, collector_.to(OpKind::write, file_.fd(), 99, out.span())).error, 0);
    const Completion completion =
        run(*engine, collector_, collector_.to(OpKind::read, file_.fd(), 99, in.span()));
    EXPECT_EQ(completion.error, 0);
    EXPECT_EQ(completion.bytes, in.size());
    EXPECT_TRUE(in == out);
    EXPECT_GT(engine->stats().short_transfers, 0u);
    EXPECT_GT(engine->stats().retries, 0u);
  }
}

TEST_P(FaultTransportTest, AFailedPieceFailsItsRequestWhereItLies) {
  const std::unique_ptr<Engine> engine = make({{.index = 2, .kind = FaultKind::fail, .error = EIO}});
  const Bytes bytes(6 * kBlock);
  const Completion completion =
      run(*engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span()));
  EXPECT_EQ(completion.error, EIO);
  EXPECT_EQ(completion.bytes, 2 * kBlock);
}

TEST_P(FaultTransportTest, CompletionsMayComeInAnyOrder) {
  const std::unique_ptr<Engine> engine = make({{.index = 0, .kind = FaultKind::delay, .delay_ns = 400},
                                               {.index = 1, .kind = FaultKind::delay, .delay_ns = 300},
                                               {.index = 2, .kind = FaultKind::delay, .delay_ns = 200},
                                               {.index = 3, .kind = FaultKind::delay, .delay_ns = 100}});
  const Bytes bytes(4 * 4096);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(
        collector_.to(OpKind::write, file_.fd(), i * 4096, bytes.span().subspan(i * 4096, 4096), i));
  }
  engine->submit(requests);
  engine->wait(4);
  ASSERT_EQ(collector_.completions.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(collector_.completions[i].tag, 3 - i);
}

TEST_P(FaultTransportTest, AFullDiskEndsTheRequestWhereItFilledUp) {
  const std::unique_ptr<Engine> engine = make({{.kind = FaultKind::full, .bytes = 2 * kBlock + 512}});
  const Bytes bytes(6 * kBlock);
  const Completion completion =
      run(*engine, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span()));
  EXPECT_EQ(completion.error, ENOSPC);
  EXPECT_EQ(completion.bytes, 2 * kBlock + 512);
}

TEST_P(FaultTransportTest, CorruptsWhatWasReadAndTearsWhatWasWritten) {
  const std::unique_ptr<Engine> engine = make({{.index = 0, .kind = FaultKind::torn_write, .bytes = 100},
                                               {.index = 2, .kind = FaultKind::corrupt_read, .bytes = 7}});
  const Bytes bytes(4096);
  bytes.fill_pattern(1);
  const Request write = collector_.to(OpKind::write, file_.fd(), 0, bytes.span());
  EXPECT_EQ(run(*engine, collector_, write).error, 0);
  EXPECT_EQ(file_.size_bytes(), 100u);
  EXPECT_EQ(run(*engine, collector_, write).error, 0);
  const Bytes in(4096);
  EXPECT_EQ(run(*engine, collector_, collector_.to(OpKind::read, file_.fd(), 0, in.span())).error, 0);
  EXPECT_EQ(in[7] ^ bytes[7], std::byte{1});
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultTransportTest,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::io::fault_engine_test
