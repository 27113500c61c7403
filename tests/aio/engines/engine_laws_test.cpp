// The laws of io::Engine, the same for every kind.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <random>
#include <thread>

#include "aio/aio_support.h"
#include "aio/engines/repeated_mapping.h"
#include "support/allocation_counter.h"

namespace terrace::io::engine_laws_test {
namespace {

constexpr uint64_t kBlock = 16 * kKiB;
constexpr uint32_t kDepth = 4;

class EngineLaws : public ::testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << name_of(GetParam()) << " does not work here: " << probe.reason.text;
    engine_ = engine_of(GetParam(), kDepth, kBlock, 8);
  }
  File create(const std::string& name, bool direct = false) {
    return File::open(folder_ / name, {.access = FileAccess::read_write, .create = true, .direct = direct});
  }
  Completion write(const File& file, uint64_t offset, const Bytes& bytes) {
    return run(*engine_, collector_, collector_.to(OpKind::write, file.fd(), offset, bytes.span()));
  }
  Completion read(const File& file, uint64_t offset, const Bytes& bytes) {
    return run(*engine_, collector_, collector_.to(OpKind::read, file.fd(), offset, bytes.span()));
  }

  ScratchFolder folder_;
  Collector collector_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineLaws, ReadsBackWhatItWroteAtEverySizeAroundBlockAndDepth) {
  File file = create("sizes");
  const uint64_t queue = kBlock * kDepth;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{511}, uint64_t{4097}, kBlock - 1, kBlock, kBlock + 1,
                               queue - 1, queue, queue + 1, 3 * queue + 12345}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{4096}, uint64_t{777}}) {
      const Bytes out(bytes);
      out.fill_pattern(bytes + offset);
      const Completion written = write(file, offset, out);
      EXPECT_EQ(written.error, 0);
      EXPECT_EQ(written.bytes, bytes);
      const Bytes in(bytes);
      const Completion was_read = read(file, offset, in);
      EXPECT_EQ(was_read.error, 0);
      EXPECT_EQ(was_read.bytes, bytes);
      EXPECT_TRUE(in == out) << bytes << " bytes at " << offset;
    }
  }
  EXPECT_LE(engine_->stats().peak_pieces_in_flight, kDepth);
}

TEST_P(EngineLaws, ReturnsTheTagAndCountsEveryRequest) {
  File file = create("tags");
  const Bytes bytes(8 * 4096);
  bytes.fill_pattern(3);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    requests.push_back(
        collector_.to(OpKind::write, file.fd(), i * 4096, bytes.span().subspan(i * 4096, 4096), 100 + i));
  }
  engine_->submit(requests);
  EXPECT_EQ(engine_->in_flight(), 8u);
  EXPECT_EQ(engine_->wait(8), 8u);
  EXPECT_EQ(engine_->in_flight(), 0u);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(collector_.of(100 + i).error, 0);
  EXPECT_EQ(engine_->stats().requests, 8u);
  EXPECT_EQ(engine_->stats().bytes_written, bytes.size());
}

TEST_P(EngineLaws, AcceptsMoreRequestsThanItHolds) {
  File file = create("many");
  constexpr uint64_t kCount = 500;  // the engine holds 4 + 8
  const Bytes out(kCount * 1000);
  out.fill_pattern(11);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < kCount; ++i) {
    requests.push_back(
        collector_.to(OpKind::write, file.fd(), i * 1000, out.span().subspan(i * 1000, 1000), i));
  }
  engine_->submit(requests);
  EXPECT_GE(collector_.completions.size(), kCount - 12) << "submit() completes what it has no room for";
  EXPECT_LE(engine_->in_flight(), 12u);
  engine_->wait(kCount);
  ASSERT_EQ(collector_.completions.size(), kCount);
  for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(collector_.of(i).error, 0);
  EXPECT_EQ(engine_->stats().peak_requests_in_flight, 12u);
  const Bytes in(out.size());
  EXPECT_EQ(read(file, 0, in).error, 0);
  EXPECT_TRUE(in == out);
}

TEST_P(EngineLaws, MovesTheSameBytesInWhateverOrderRequestsCome) {
  File file = create("order");
  constexpr uint64_t kCount = 64;
  constexpr uint64_t kPart = 3 * 4096 + 100;
  const Bytes out(kCount * kPart);
  out.fill_pattern(5);
  const Bytes in(out.size());
  std::mt19937_64 random(20240607);
  for (const bool is_write : {true, false}) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < kCount; ++i) {
      const std::span<std::byte> part = (is_write ? out : in).span().subspan(i * kPart, kPart);
      requests.push_back(
          collector_.to(is_write ? OpKind::write : OpKind::read, file.fd(), i * kPart, part, i));
    }
    std::shuffle(requests.begin(), requests.end(), random);
    engine_->submit(requests);
    engine_->wait(kCount);
  }
  EXPECT_EQ(collector_.completions.size(), 2 * kCount);
  EXPECT_TRUE(in == out);
}

TEST_P(EngineLaws, ReportsTheEndOfTheFileWithTheBytesThatWereThere) {
  File file = create("short");
  const Bytes out(2 * kBlock + 500);
  out.fill_pattern(9);
  ASSERT_EQ(write(file, 0, out).error, 0);
  const Bytes in(10 * kBlock);
  Completion completion = read(file, 0, in);
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, out.size());
  EXPECT_TRUE(std::equal(out.span().begin(), out.span().end(), in.span().begin()));

  completion = read(file, out.size(), in);
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, 0u);
  completion = read(file, 100 * kBlock, in);
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, 0u);
  EXPECT_EQ(engine_->stats().failed, 3u);
}

TEST_P(EngineLaws, ReportsTheErrnoOfARequestThatCannotWork) {
  const Bytes bytes(3 * kBlock);
  EXPECT_EQ(run(*engine_, collector_, collector_.to(OpKind::read, -1, 0, bytes.span())).error, EBADF);
  create("read only");
  File file = File::open(folder_ / "read only", {.access = FileAccess::read});
  const Completion completion = write(file, 0, bytes);
  EXPECT_EQ(completion.error, EBADF);
  EXPECT_EQ(completion.bytes, 0u);
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(EngineLaws, RefusesOffsetsBeyondWhatTheKernelCanName) {
  File file = create("offsets");
  const Bytes bytes(4096);
  EXPECT_EQ(write(file, UINT64_MAX, bytes).error, EINVAL)
      << "the kernel would take -1 as the current position";
  EXPECT_EQ(write(file, INT64_MAX - 100, bytes).error, EINVAL);
  EXPECT_EQ(file.size_bytes(), 0u);
}

TEST_P(EngineLaws, OneFailureLeavesTheOtherRequestsAlone) {
  File file = create("others");
  const Bytes bytes(6 * kBlock);
  bytes.fill_pattern(2);
  const std::array requests = {collector_.to(OpKind::write, file.fd(), 0, bytes.span(), 1),
                               collector_.to(OpKind::write, -1, 0, bytes.span(), 2),
                               collector_.to(OpKind::write, file.fd(), bytes.size(), bytes.span(), 3)};
  engine_->submit(requests);
  engine_->wait(3);
  EXPECT_EQ(collector_.of(1).error, 0);
  EXPECT_EQ(collector_.of(2).error, EBADF);
  EXPECT_EQ(collector_.of(3).error, 0);
  EXPECT_EQ(file.size_bytes(), 2 * bytes.size());
}

TEST_P(EngineLaws, CompletesARequestOfZeroBytesBeforeSubmitReturns) {
  const Request request = collector_.to(OpKind::read, -1, 0, {}, 7);
  engine_->submit({&request, 1});
  EXPECT_EQ(collector_.of(7).error, 0);
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(EngineLaws, HasNothingToWaitForWhenNothingIsInFlight) {
  EXPECT_EQ(engine_->poll(), 0u);
  EXPECT_EQ(engine_->wait(5), 0u);
}

// A callback that submits the next request of a chain.
struct Chain {
  Engine* engine;
  Request request;
  uint64_t left;
  uint64_t failed = 0;
  uint32_t depth = 0;
  uint32_t deepest = 0;

  static void next(void* context, const Completion& completion) noexcept {
    auto& chain = *static_cast<Chain*>(context);
    chain.deepest = std::max(chain.deepest, ++chain.depth);
    if (completion.error != 0) ++chain.failed;
    if (chain.left > 0) {
      --chain.left;
      chain.request.offset += chain.request.bytes;
      chain.engine->submit({&chain.request, 1});
    }
    --chain.depth;
  }
  void begin(Request first) {
    request = first;
    request.on_complete = &next;
    request.context = this;
    engine->submit({&request, 1});
  }
};

TEST_P(EngineLaws, CallbacksMaySubmitTheirSuccessors) {
  File file = create("chains");
  constexpr uint64_t kChains = 20;  // more than the engine holds
  constexpr uint64_t kLinks = 30;
  const Bytes bytes(5000);
  bytes.fill_pattern(1);
  std::vector<Chain> chains(kChains);
  for (uint64_t i = 0; i < kChains; ++i) {
    chains[i].engine = engine_.get();
    chains[i].left = kLinks - 1;
    chains[i].begin(collector_.to(OpKind::write, file.fd(), i * kLinks * bytes.size(), bytes.span()));
  }
  while (engine_->in_flight() > 0) engine_->wait(1);
  for (const Chain& chain : chains) {
    EXPECT_EQ(chain.left, 0u);
    EXPECT_EQ(chain.failed, 0u);
  }
  EXPECT_EQ(engine_->stats().requests, kChains * kLinks);
  EXPECT_EQ(file.size_bytes(), kChains * kLinks * bytes.size());
}

TEST_P(EngineLaws, ALongChainOfCallbacksNeedsNoDeepStack) {
  Chain chain{engine_.get(), {}, 100'000};
  chain.begin(collector_.to(OpKind::read, -1, 0, {}));
  EXPECT_EQ(chain.left, 0u);
  EXPECT_EQ(chain.deepest, 1u);
}

// A callback that submits more than the engine has room for.
struct Burst {
  Engine* engine;
  std::vector<Request> requests;
  bool done = false;

  static void submit_all(void* context, const Completion&) noexcept {
    auto& burst = *static_cast<Burst*>(context);
    burst.engine->submit(burst.requests);
    burst.done = true;
  }
};

TEST_P(EngineLaws, ACallbackMaySubmitMoreThanThereIsRoomFor) {
  File file = create("burst");
  const Bytes bytes(4096);
  Burst burst{engine_.get(), {}};
  for (uint64_t i = 0; i < 50; ++i) {
    burst.requests.push_back(collector_.to(OpKind::write, file.fd(), i * 4096, bytes.span(), i));
  }
  const Request first{OpKind::write, file.fd(), 0, bytes.data(), 4096, &Burst::submit_all, &burst, 99};
  engine_->submit({&first, 1});
  while (engine_->in_flight() > 0) engine_->wait(1);
  EXPECT_TRUE(burst.done);
  EXPECT_EQ(collector_.completions.size(), 50u);
  EXPECT_EQ(file.size_bytes(), 50u * 4096);
}

// Without the wake these would wait for ever.
TEST_P(EngineLaws, WakeEndsATransportsWaitFromAnotherThreadAndBeforehand) {
  const std::unique_ptr<Transport> transport = make_transport({.kind = GetParam(), .queue_depth = 1});
  PieceResult result{};
  for (int i = 0; i < 3; ++i) {
    transport->wake();
    const Reaped reaped = transport->reap({&result, 1}, true);
    EXPECT_TRUE(reaped.woken);
    EXPECT_EQ(reaped.count, 0u);
    EXPECT_FALSE(transport->reap({&result, 1}, false).woken) << "one wake is seen once";
    std::thread waker([&] { transport->wake(); });
    EXPECT_TRUE(transport->reap({&result, 1}, true).woken);
    waker.join();
  }
}

TEST_P(EngineLaws, TheDestructorFinishesWhatIsInFlight) {
  File file = create("destroyed");
  const Bytes bytes(20 * kBlock);
  bytes.fill_pattern(8);
  for (uint64_t i = 0; i < 5; ++i) {
    const Request request = collector_.to(OpKind::write, file.fd(), i * bytes.size(), bytes.span(), i);
    engine_->submit({&request, 1});
  }
  engine_.reset();
  EXPECT_EQ(collector_.completions.size(), 5u);
  EXPECT_EQ(file.size_bytes(), 5 * bytes.size());
}

TEST_P(EngineLaws, MovesDirectFilesAndTheirUnalignedEnd) {
  File file = create("direct", true);
  if (!file.direct()) GTEST_SKIP() << "no direct I/O in the scratch folder: " << file.direct_refusal();
  ASSERT_EQ(4096 % file.alignment_bytes(), 0u);
  const Bytes out(5 * kBlock);
  out.fill_pattern(4);
  ASSERT_EQ(write(file, kBlock, out).error, 0);
  const Bytes in(out.size());
  ASSERT_EQ(read(file, kBlock, in).error, 0);
  EXPECT_TRUE(in == out);

  file.resize(kBlock + 3 * kBlock + 1000);
  const Completion completion = read(file, kBlock, in);
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, 3 * kBlock + 1000);
  EXPECT_TRUE(std::equal(in.span().begin(), in.span().begin() + 3 * kBlock + 1000, out.span().begin()));
}

TEST_P(EngineLaws, ReportsAMisalignedDirectTransfer) {
  File file = create("misaligned", true);
  if (!file.direct() || file.alignment_bytes() < 2)
    GTEST_SKIP() << "no direct I/O: " << file.direct_refusal();
  const Bytes bytes(4096);
  const Completion completion = write(file, 1, bytes);
  EXPECT_EQ(completion.error, EINVAL);
  EXPECT_EQ(completion.bytes, 0u);
}

TEST_P(EngineLaws, RegisteredMemoryMovesTheSameBytes) {
  File file = create("registered", true);
  const Bytes memory(8 * kBlock);
  memory.fill_pattern(6);
  const bool registered = engine_->register_buffer(memory.span());
  EXPECT_EQ(registered, engine_->registration_refusal().empty());
  ASSERT_EQ(write(file, 0, memory).error, 0);
  EXPECT_EQ(engine_->stats().registered_pieces, registered ? 8u : 0u);
  const Bytes plain(memory.size());
  ASSERT_EQ(read(file, 0, plain).error, 0);
  EXPECT_EQ(engine_->stats().registered_pieces, registered ? 8u : 0u);
  EXPECT_TRUE(plain == memory);
  memory.fill(std::byte{0});
  ASSERT_EQ(read(file, 0, memory).error, 0);
  EXPECT_TRUE(plain == memory);
  if (!registered) return;
  engine_->unregister_buffer(memory.span());
  ASSERT_EQ(read(file, 0, memory).error, 0);
  EXPECT_EQ(engine_->stats().registered_pieces, 16u);
}

TEST_P(EngineLaws, OneRequestMayBeLargerThanFourGibibytes) {
#ifdef __SANITIZE_THREAD__
  if (GetParam() == EngineKind::threads)
    GTEST_SKIP() << "the thread sanitizer looks at every byte a thread writes";
#endif
  constexpr uint64_t kBytes = 4 * kGiB + 3 * kMiB + 512 * 9;
  engine_ = engine_of(GetParam(), 8, 2 * kMiB);
  const RepeatedMapping memory(kBytes);

  // Written to where writing costs nothing.
  const int null_device = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  Completion completion =
      run(*engine_, collector_, collector_.to(OpKind::write, null_device, 0, memory.span(kBytes)));
  ::close(null_device);
  EXPECT_EQ(completion.error, 0);
  EXPECT_EQ(completion.bytes, kBytes);
  EXPECT_EQ(engine_->stats().bytes_written, kBytes);
}

TEST_P(EngineLaws, OffsetsBeyondFourGibibytesAreNotCutToThirtyTwoBits) {
  File file = create("sparse");
  const Bytes low(kMiB);
  low.fill_pattern(11);
  const Bytes high(kMiB);
  high.fill_pattern(12);
  constexpr uint64_t kHighOffset = 5 * kGiB;
  ASSERT_EQ(write(file, kHighOffset % (uint64_t{1} << 32), low).error, 0);
  ASSERT_EQ(write(file, kHighOffset, high).error, 0);
  EXPECT_EQ(file.size_bytes(), kHighOffset + kMiB);
  const Bytes in(kMiB);
  ASSERT_EQ(read(file, kHighOffset, in).error, 0);
  EXPECT_TRUE(in == high);
  ASSERT_EQ(read(file, kHighOffset % (uint64_t{1} << 32), in).error, 0);
  EXPECT_TRUE(in == low);
}

TEST_P(EngineLaws, ARequestOfMoreThanFourGibibytesMayEndAtTheEndOfTheFile) {
  File file = create("ends early");
  const Bytes out(3 * kMiB + 77);
  out.fill_pattern(13);
  ASSERT_EQ(write(file, 0, out).error, 0);
  constexpr uint64_t kBytes = 4 * kGiB + 8 * kKiB;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> span(static_cast<std::byte*>(memory), kBytes);
  const Completion completion = run(*engine_, collector_, collector_.to(OpKind::read, file.fd(), 0, span));
  EXPECT_EQ(completion.error, kEndOfFile);
  EXPECT_EQ(completion.bytes, out.size());
  EXPECT_TRUE(std::equal(out.span().begin(), out.span().end(), span.begin()));
  munmap(memory, kBytes);
}

TEST_P(EngineLaws, TenThousandOperationsLeaveNothingBehind) {
  File file = create("leaks");
  const Bytes bytes(kDepth * 2 * 4096);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < kDepth * 2; ++i) {
    requests.push_back(
        collector_.to(OpKind::write, file.fd(), i * 4096, bytes.span().subspan(i * 4096, 4096), i));
  }
  collector_.completions.reserve(20'000);
  const auto operate = [&](uint64_t count) {
    for (uint64_t done = 0; done < count; done += requests.size()) {
      engine_->submit(requests);
      engine_->wait(requests.size());
      requests.front().kind = requests.front().kind == OpKind::read ? OpKind::write : OpKind::read;
    }
  };
  operate(1000);
  const size_t descriptors = open_descriptors();
  const uint64_t allocations = terrace::testing::allocations_of_this_thread();
  const size_t heap_bytes = mallinfo2().uordblks;
  operate(10'000);
  EXPECT_EQ(terrace::testing::allocations_of_this_thread(), allocations)
      << "an engine allocates nothing per request";
  EXPECT_EQ(mallinfo2().uordblks, heap_bytes);
  EXPECT_EQ(open_descriptors(), descriptors);
  for (const Completion& completion : collector_.completions) ASSERT_EQ(completion.error, 0);
}

TEST_P(EngineLaws, EnginesThatComeAndGoLeakNoDescriptors) {
  const size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const std::unique_ptr<Engine> engine = engine_of(GetParam());
    engine->poll();
  }
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineLaws,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::io::engine_laws_test
