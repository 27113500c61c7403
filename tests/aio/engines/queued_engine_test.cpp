// The logic above a transport, over transports made for the purpose: what is cut, continued, retried,
// ordered.
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include <terrace/aio/engines/fault_transport.h>

#include "aio/aio_support.h"
#include "support/simulated_time.h"

namespace terrace::io::queued_engine_test {
namespace {

// Completes pieces when and how the test says.
class ScriptedTransport final : public Transport {
 public:
  // Answers a piece; called when the piece is reaped. By default everything asked for is moved.
  std::function<int64_t(const Piece&)> answer = [](const Piece& piece) { return int64_t{piece.bytes}; };
  std::vector<Piece> started;  // all, in order
  std::deque<Piece> waiting;   // not yet allowed to complete
  size_t may_complete = SIZE_MAX;
  size_t batches = 0;

  EngineKind kind() const override { return EngineKind::threads; }
  void start(std::span<const Piece> pieces) override {
    ++batches;
    started.insert(started.end(), pieces.begin(), pieces.end());
    waiting.insert(waiting.end(), pieces.begin(), pieces.end());
  }
  Reaped reap(std::span<PieceResult> results, bool block) override {
    size_t count = 0;
    while (count < results.size() && !waiting.empty() && may_complete > 0) {
      results[count++] = PieceResult{waiting.front().id, answer(waiting.front())};
      waiting.pop_front();
      if (may_complete != SIZE_MAX) --may_complete;
    }
    const bool woken = std::exchange(woken_, false);
    EXPECT_FALSE(block && count == 0 && !woken) << "this would wait for ever";
    if (block && count == 0 && !woken) may_complete = SIZE_MAX;
    return Reaped{count, woken};
  }
  void wake() noexcept override { woken_ = true; }
  bool register_buffer(std::span<std::byte>) override { return false; }
  void unregister_buffer(std::span<std::byte>) override {}
  bool register_file(int) override { return false; }
  void unregister_file(int) override {}
  std::string_view registration_refusal() const override { return "scripted"; }
  TransportStats stats() const override { return {}; }

 private:
  bool woken_ = false;
};

struct Scripted {
  explicit Scripted(const EngineOptions& options) {
    auto owned = std::make_unique<ScriptedTransport>();
    transport = owned.get();
    engine = make_engine_over(std::move(owned), options);
  }
  Collector collector;  // outlives the engine, whose destructor completes what is in flight
  ScriptedTransport* transport;
  std::unique_ptr<Engine> engine;
};

constexpr uint64_t kBlock = 64 * kKiB;
constexpr int kNoFile = -1;  // the engine looks at the file of a transfer that was refused
const EngineOptions kSmall{.queue_depth = 4, .block_bytes = kBlock, .backlog_count = 16};

TEST(QueuedEngine, CutsARequestIntoBlocksThatCoverItOnce) {
  Scripted scripted({.queue_depth = 8, .block_bytes = kMiB});
  // Never touched: only addresses are computed.
  auto* data = reinterpret_cast<std::byte*>(uint64_t{1} << 40);
  constexpr uint64_t kBytes = 9 * kGiB + 12345;
  constexpr uint64_t kOffset = 6 * kGiB + 7;
  for (const OpKind kind : {OpKind::read, OpKind::write}) {
    scripted.transport->started.clear();
    const Completion completion = run(*scripted.engine, scripted.collector,
                                      scripted.collector.to(kind, kNoFile, kOffset, {data, kBytes}));
    EXPECT_EQ(completion.error, 0);
    EXPECT_EQ(completion.bytes, kBytes);
    uint64_t covered = 0;
    for (const Piece& piece : scripted.transport->started) {
      ASSERT_EQ(piece.kind, kind);
      ASSERT_EQ(piece.offset, kOffset + covered);
      ASSERT_EQ(piece.data, data + covered);
      ASSERT_LE(piece.bytes, kMiB);
      covered += piece.bytes;
    }
    EXPECT_EQ(covered, kBytes);
  }
}

TEST(QueuedEngine, StartsWhatOneSubmitBringsInOneBatch) {
  Scripted scripted(kSmall);
  const Bytes bytes(kBlock);
  std::vector<Request> requests(4, scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span()));
  scripted.engine->submit(requests);
  EXPECT_EQ(scripted.transport->batches, 1u);
  EXPECT_EQ(scripted.transport->started.size(), 4u);
  EXPECT_EQ(scripted.engine->wait(4), 4u);
}

TEST(QueuedEngine, KeepsTheQueueFullAndNeverFuller) {
  Scripted scripted(kSmall);
  const Bytes bytes(20 * kBlock);
  const Request request = scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span());
  scripted.engine->submit({&request, 1});
  scripted.transport->may_complete = 0;
  EXPECT_EQ(scripted.transport->waiting.size(), 4u);
  for (int i = 0; i < 16; ++i) {
    scripted.transport->may_complete = 1;
    scripted.engine->poll();
    EXPECT_EQ(scripted.transport->waiting.size(), 4u) << "after " << i + 1 << " completions";
  }
  scripted.transport->may_complete = SIZE_MAX;
  scripted.engine->wait(1);
  EXPECT_EQ(scripted.engine->stats().peak_pieces_in_flight, 4u);
  EXPECT_EQ(scripted.collector.completions.size(), 1u);
}

TEST(QueuedEngine, WaitReturnsAfterAsManyAsWereAskedFor) {
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  std::vector<Request> requests(6, scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span()));
  scripted.engine->submit(requests);
  scripted.transport->may_complete = 2;
  EXPECT_EQ(scripted.engine->wait(2), 2u);
  scripted.transport->may_complete = 0;
  EXPECT_EQ(scripted.engine->poll(), 0u);
  scripted.transport->may_complete = SIZE_MAX;
  EXPECT_EQ(scripted.engine->wait(100), 4u) << "no more than there were";
}

TEST(QueuedEngine, AWokenWaitReturnsWithoutACompletion) {
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  const Request request = scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span());
  scripted.engine->submit({&request, 1});
  scripted.transport->may_complete = 0;
  scripted.engine->wake();
  EXPECT_EQ(scripted.engine->wait(1), 0u);
  scripted.transport->may_complete = SIZE_MAX;
  EXPECT_EQ(scripted.engine->wait(1), 1u) << "a wake ends one wait";
}

TEST(QueuedEngine, APollThatSeesAWakeLeavesItForTheNextWait) {
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  const Request request = scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span());
  scripted.engine->submit({&request, 1});
  scripted.transport->may_complete = 0;
  scripted.engine->wake();
  scripted.engine->poll();
  EXPECT_EQ(scripted.engine->wait(1), 0u);
  scripted.transport->may_complete = SIZE_MAX;
}

TEST(QueuedEngine, CriticalPiecesOvertakeAPartlyStartedBackgroundRequest) {
  Scripted scripted(kSmall);
  const Bytes bytes(10 * kBlock);
  Request background = scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span(), 1);
  background.priority = Priority::background;
  const Request critical = scripted.collector.to(OpKind::read, kNoFile, 0, bytes.span().first(3 * kBlock), 2);
  scripted.engine->submit({&background, 1});
  scripted.engine->submit({&critical, 1});
  scripted.engine->wait(2);
  std::string order;
  for (const Piece& piece : scripted.transport->started) order += piece.kind == OpKind::write ? 'b' : 'c';
  EXPECT_EQ(order, "bbbbcccbbbbbb");
}

TEST(QueuedEngine, IssuesNothingMoreOfARequestThatFailed) {
  Scripted scripted(kSmall);
  const Bytes bytes(20 * kBlock);
  scripted.transport->answer = [](const Piece& piece) {
    return piece.offset == 2 * kBlock ? -int64_t{EIO} : int64_t{piece.bytes};
  };
  const std::array requests = {scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span(), 1),
                               scripted.collector.to(OpKind::write, kNoFile, 100 * kBlock, bytes.span(), 2)};
  scripted.engine->submit(requests);
  scripted.engine->wait(2);
  EXPECT_EQ(scripted.collector.of(1).error, EIO);
  EXPECT_EQ(scripted.collector.of(1).bytes, 2 * kBlock) << "what lies before the failure";
  EXPECT_EQ(scripted.collector.of(2).error, 0);
  EXPECT_EQ(scripted.transport->started.size(), 4u + 20u);
}

TEST(QueuedEngine, ReportsTheLowestOfSeveralFailures) {
  Scripted scripted(kSmall);
  const Bytes bytes(4 * kBlock);
  std::map<uint64_t, int> errors = {{1 * kBlock, ENOSPC}, {3 * kBlock, EIO}};
  scripted.transport->answer = [&](const Piece& piece) {
    return errors.contains(piece.offset) ? -int64_t{errors[piece.offset]} : int64_t{piece.bytes};
  };
  const auto outcome = [&] {
    return run(*scripted.engine, scripted.collector,
               scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span()));
  };
  EXPECT_EQ(outcome().error, ENOSPC);
  errors = {{1 * kBlock, EIO}, {0, ENOSPC}};
  EXPECT_EQ(outcome().error, ENOSPC);
  EXPECT_EQ(outcome().bytes, 0u);
}

TEST(QueuedEngine, ContinuesShortTransfersUntilTheRequestIsWhole) {
  Scripted scripted(kSmall);
  const Bytes bytes(3 * kBlock + 5);
  std::vector<uint32_t> touched(bytes.size());
  scripted.transport->answer = [&](const Piece& piece) {
    const uint32_t moved = std::max(piece.bytes / 3, 1u);
    for (uint32_t i = 0; i < moved; ++i) ++touched[static_cast<size_t>(piece.data + i - bytes.data())];
    EXPECT_EQ(piece.offset - 1000, static_cast<uint64_t>(piece.data - bytes.data()));
    return int64_t{moved};
  };
  const Completion completion = run(*scripted.engine, scripted.collector,
                                    scripted.collector.to(OpKind::read, kNoFile, 1000, bytes.span()));
  EXPECT_EQ(completion.error, 0);
  EXPECT_EQ(completion.bytes, bytes.size());
  EXPECT_EQ(std::count(touched.begin(), touched.end(), 1u), static_cast<std::ptrdiff_t>(bytes.size()));
  EXPECT_GT(scripted.engine->stats().short_transfers, 10u);
}

// As a direct file refuses it.
TEST(QueuedEngine, MovesABlockAgainInWhichAShortTransferEnded) {
  Scripted scripted(kSmall);
  const Bytes bytes(3 * kBlock);
  int pieces = 0;
  scripted.transport->answer = [&](const Piece& piece) {
    EXPECT_EQ(piece.offset - 4096, static_cast<uint64_t>(piece.data - bytes.data()));
    if (piece.offset % 512 != 0) return -int64_t{EINVAL};
    return ++pieces % 2 == 1 ? std::min<int64_t>(piece.bytes, 9000) : int64_t{piece.bytes};
  };
  for (const OpKind kind : {OpKind::read, OpKind::write}) {
    const Completion completion =
        run(*scripted.engine, scripted.collector, scripted.collector.to(kind, kNoFile, 4096, bytes.span()));
    EXPECT_EQ(completion.error, 0);
    EXPECT_EQ(completion.bytes, bytes.size());
  }
  EXPECT_EQ(scripted.engine->stats().bytes_read, bytes.size());
  EXPECT_EQ(scripted.engine->stats().bytes_written, bytes.size());
  EXPECT_GT(scripted.engine->stats().retries, 0u);
  // One that always ends there is no endless loop.
  scripted.transport->answer = [](const Piece& piece) {
    return piece.offset % 512 != 0 ? -int64_t{EINVAL} : std::min<int64_t>(piece.bytes, 1000);
  };
  const Request request = scripted.collector.to(OpKind::read, kNoFile, 4096, bytes.span());
  EXPECT_EQ(run(*scripted.engine, scripted.collector, request).error, EINVAL);
}

TEST(QueuedEngine, RetriesInterruptedTransfersButNotForEver) {
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  int interruptions = 0;
  scripted.transport->answer = [&](const Piece& piece) {
    ++interruptions;
    return interruptions % 2 == 1 ? -int64_t{EINTR}
           : interruptions < 100  ? -int64_t{EAGAIN}
                                  : int64_t{piece.bytes};
  };
  const Request request = scripted.collector.to(OpKind::read, kNoFile, 0, bytes.span());
  EXPECT_EQ(run(*scripted.engine, scripted.collector, request).error, 0);
  EXPECT_EQ(interruptions, 100);
  EXPECT_EQ(scripted.engine->stats().retries, 99u);
  scripted.transport->answer = [](const Piece&) { return -int64_t{EAGAIN}; };
  EXPECT_EQ(run(*scripted.engine, scripted.collector, request).error, EAGAIN);
}

TEST(QueuedEngine, AWriteThatMovesNothingIsAnErrorAndNoEndlessLoop) {
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  scripted.transport->answer = [](const Piece&) { return int64_t{0}; };
  EXPECT_EQ(run(*scripted.engine, scripted.collector,
                scripted.collector.to(OpKind::write, kNoFile, 0, bytes.span()))
                .error,
            EIO);
}

TEST(QueuedEngine, KnowsTheEndOfADirectFileWhoseFileSystemAnswersEinvalThere) {
  ScratchFolder folder;
  const Bytes content(1000);
  write_bytes(folder / "file", content.span());
  const File file = File::open(folder / "file", {});
  Scripted scripted(kSmall);
  const Bytes bytes(4096);
  scripted.transport->answer = [](const Piece& piece) {
    return piece.offset == 0 ? int64_t{1000} : -int64_t{EINVAL};
  };
  const Request request = scripted.collector.to(OpKind::read, file.fd(), 0, bytes.span());
  Completion completion = run(*scripted.engine, scripted.collector, request);
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, 1000u);
  scripted.transport->answer = [](const Piece& piece) {
    return piece.offset == 0 ? int64_t{900} : -int64_t{EINVAL};
  };
  completion = run(*scripted.engine, scripted.collector, request);
  EXPECT_EQ(completion.error, EINVAL) << "the file does not end there";
}

TEST(QueuedEngine, RefusesOptionsOutOfRange) {
  const auto refused = [](EngineOptions options) {
    try {
      make_engine(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.parts().subject.in(Door::cpp);
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({.queue_depth = 0}), "queue_depth");
  EXPECT_EQ(refused({.queue_depth = 5000}), "queue_depth");
  EXPECT_EQ(refused({.block_bytes = 0}), "block_bytes");
  EXPECT_EQ(refused({.block_bytes = 5000}), "block_bytes");
  EXPECT_EQ(refused({.block_bytes = 2 * kGiB}), "block_bytes");
  EXPECT_EQ(refused({.kind = EngineKind::threads, .thread_count = 0}), "thread_count");
  EXPECT_EQ(refused({.backlog_count = 0}), "backlog_count");
  EXPECT_EQ(refused({}), "accepted");
}

void poll_elsewhere(void* engine, const Completion&) noexcept {
  std::thread([engine] { static_cast<Engine*>(engine)->poll(); }).join();
}

TEST(QueuedEngineDeathTest, IsNotUsedByTwoThreadsAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Scripted scripted(kSmall);
  const Request request{OpKind::read, kNoFile, 0, nullptr, 0, &poll_elsewhere, scripted.engine.get(), 0};
  std::thread([&] { scripted.engine->poll(); }).join();  // one after the other is no mistake
  EXPECT_DEATH(scripted.engine->submit({&request, 1}), "two threads at the same moment");
}

void wait_inside(void* engine, const Completion&) noexcept {
  static_cast<Engine*>(engine)->wait(1);
}

TEST(QueuedEngineDeathTest, CallbacksMayNotWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Scripted scripted(kSmall);
  const Request request{OpKind::read, kNoFile, 0, nullptr, 0, &wait_inside, scripted.engine.get(), 0};
  EXPECT_DEATH(scripted.engine->submit({&request, 1}), "from a callback");
}

// Every request takes 20 ms of simulated time, whatever the machine does.
class SimulatedDisk : public ::testing::TestWithParam<EngineKind> {};

TEST_P(SimulatedDisk, ReachesItsQueueDepthAndOverlapsThatMuch) {
  const ProbeResult probe = probe_engine(GetParam());
  if (!probe.works) GTEST_SKIP() << probe.reason.text;
  constexpr uint64_t kRequestNs = 20'000'000;
  FakeClock clock;
  const EngineOptions options{.kind = GetParam(), .queue_depth = 4, .block_bytes = 4096};
  const Fault slow{.index = kEveryIndex, .kind = FaultKind::delay, .delay_ns = kRequestNs};
  const std::unique_ptr<Engine> engine = make_engine_over(
      std::make_unique<FaultTransport>(make_transport(options), std::vector{slow}, simulated_time(clock)),
      options);
  ScratchFolder folder;
  const File file = File::open(folder / "file", {.access = FileAccess::read_write, .create = true});
  Collector collector;
  const Bytes bytes(12 * 4096);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back(
        collector.to(OpKind::write, file.fd(), i * 4096, bytes.span().subspan(i * 4096, 4096), i));
  }
  engine->submit(requests);
  EXPECT_EQ(engine->poll(), 0u) << "no time has passed";
  EXPECT_EQ(clock.now_ns(), 0u);
  engine->wait(1);
  EXPECT_EQ(clock.now_ns(), kRequestNs);
  EXPECT_EQ(collector.completions.size(), 4u);
  engine->wait(8);
  EXPECT_EQ(collector.completions.size(), 12u);
  EXPECT_EQ(engine->stats().peak_pieces_in_flight, 4u);
  EXPECT_EQ(clock.now_ns(), 3 * kRequestNs) << "twelve requests, four at a time";
}

INSTANTIATE_TEST_SUITE_P(Engines, SimulatedDisk,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::io::queued_engine_test
