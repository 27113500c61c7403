#include <terrace/aio/fault_engine.h>

#include <array>
#include <set>

#include "aio/aio_support.h"

namespace terrace::io {
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

TEST(SeededFaults, AreTheSameForTheSameSeedAndAboutAsManyAsAskedFor) {
  const Fault prototype{.index = 0, .kind = FaultKind::fail, .error = ENOSPC};
  const auto indices = [&](uint64_t seed) {
    std::set<uint64_t> result;
    for (const Fault& fault : seeded_faults(seed, 100'000, 10'000, prototype)) {
      EXPECT_EQ(fault.error, ENOSPC);
      result.insert(fault.index);
    }
    return result;
  };
  EXPECT_EQ(indices(1), indices(1));
  EXPECT_NE(indices(1), indices(2));
  EXPECT_GT(indices(1).size(), 800u);
  EXPECT_LT(indices(1).size(), 1200u);
}

// Below the common engine, over the kernel's own transports.
class FaultTransportTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  std::unique_ptr<Engine> make(std::vector<Fault> plan) {
    MemoryLog log;
    const EngineOptions options{.kind = GetParam(), .queue_depth = 4, .block_bytes = kBlock};
    return make_engine_over(std::make_unique<FaultTransport>(make_transport(options, log), std::move(plan),
                                                             simulated_time(clock_)),
                            options);
  }
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << probe.reason;
  }
  ScratchFolder folder_;
  File file_ = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  FakeClock clock_;
  Collector collector_;
};

TEST_P(FaultTransportTest, ShortAndInterruptedTransfersAreHidden) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Fault> plan =
        seeded_faults(seed, 1000, 400'000, {0, FaultKind::short_transfer, 1000 + seed * 777});
    for (const int error : {EINTR, EAGAIN}) {
      const Fault prototype{.index = 0, .kind = FaultKind::fail, .error = error};
      const std::vector<Fault> more =
          seeded_faults(seed * 1000 + static_cast<uint64_t>(error), 1000, 200'000, prototype);
      plan.insert(plan.end(), more.begin(), more.end());
    }
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
}  // namespace terrace::io
