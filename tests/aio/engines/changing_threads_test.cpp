// One thread after the other uses an engine, and most have ended when the next one goes on.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "aio/aio_support.h"
#include "support/sanitized.h"

namespace terrace::io::changing_threads_test {
namespace {

constexpr uint32_t kDepth = 4;
constexpr uint64_t kBlock = 16 * kKiB;
constexpr uint64_t kParts = 24;
constexpr uint64_t kPartBytes = 3 * kBlock;

struct Way {
  const char* name;
  EngineKind kind;
  bool direct = true;
};

// On a thread that is over when this returns.
template <typename Body>
void on_a_thread(const Body& body) {
  std::thread(body).join();
}

class ChangingThreads : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam().kind);
    if (!probe.works)
      GTEST_SKIP() << name_of(GetParam().kind) << " does not work here: " << probe.reason.text;
    on_a_thread([&] {
      engine_ = make_engine({.kind = GetParam().kind, .queue_depth = kDepth, .block_bytes = kBlock});
    });
  }
  std::vector<Request> requests(OpKind kind, const Bytes& bytes) {
    std::vector<Request> requests;
    for (uint64_t part = 0; part < kParts; ++part) {
      requests.push_back(collector_.to(kind, file_.fd(), part * kPartBytes,
                                       bytes.span().subspan(part * kPartBytes, kPartBytes), part));
    }
    return requests;
  }
  // Buffered reads find nothing in memory, so that they are under way when their thread ends.
  void forget_pages() {
    ASSERT_EQ(fsync(file_.fd()), 0);
    ASSERT_EQ(posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  void expect_all_done() {
    EXPECT_EQ(engine_->in_flight(), 0u);
    for (uint64_t part = 0; part < kParts; ++part) EXPECT_EQ(collector_.of(part).error, 0) << part;
    collector_.completions.clear();
  }

  ScratchFolder folder_;
  Collector collector_;
  File file_ = File::open(folder_ / "file",
                          {.access = FileAccess::read_write, .create = true, .direct = GetParam().direct});
  std::unique_ptr<Engine> engine_;
};

TEST_P(ChangingThreads, GoOnWithAnEngineThatIsAtRest) {
  const Bytes out(kParts * kPartBytes), in(kParts * kPartBytes);
  for (uint64_t round = 0; round < 5; ++round) {
    out.fill_pattern(round);
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      const Bytes& bytes = kind == OpKind::write ? out : in;
      on_a_thread([&] {
        engine_->submit(requests(kind, bytes));
        engine_->wait(kParts);
      });
      expect_all_done();
    }
    EXPECT_TRUE(in == out) << round;
  }
}

TEST_P(ChangingThreads, WaitForWhatAThreadHasStartedThatIsGone) {
  const Bytes out(kParts * kPartBytes), in(kParts * kPartBytes);
  for (uint64_t round = 0; round < (testing::kSanitized ? 5 : 20); ++round) {
    out.fill_pattern(round);
    in.fill(std::byte{0});
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      const Bytes& bytes = kind == OpKind::write ? out : in;
      if (kind == OpKind::read) forget_pages();
      on_a_thread([&] { engine_->submit(requests(kind, bytes)); });
      on_a_thread([&] { engine_->poll(); });
      on_a_thread([&] { engine_->wait(3); });
      on_a_thread([&] { engine_->wait(kParts); });
      expect_all_done();
    }
    ASSERT_TRUE(in == out) << round;
  }
}

// The thread before is there and busy with other things.
TEST_P(ChangingThreads, WaitForWhatAThreadHasStartedThatSleeps) {
  const Bytes out(kParts * kPartBytes), in(kParts * kPartBytes);
  out.fill_pattern(1);
  engine_->submit(requests(OpKind::write, out));
  on_a_thread([&] { engine_->wait(kParts); });
  expect_all_done();
  forget_pages();
  engine_->submit(requests(OpKind::read, in));
  on_a_thread([&] { engine_->wait(kParts); });
  expect_all_done();
  EXPECT_TRUE(in == out);
}

// A read of an empty pipe stays in the kernel when its thread ends.
TEST_P(ChangingThreads, AreWokenOfWhatTheyHaveNotStarted) {
  if (GetParam().kind != EngineKind::io_uring) GTEST_SKIP() << "reads files only";
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  std::byte byte{};
  const Request request = collector_.to(OpKind::read, ends[0], 0, {&byte, 1});
  on_a_thread([&] { engine_->submit({&request, 1}); });
  for (int round = 0; round < 3; ++round) {
    std::thread waker([&] { engine_->wake(); });
    on_a_thread([&] { EXPECT_EQ(engine_->wait(1), 0u); });
    waker.join();
  }
  on_a_thread([&] {
    std::thread writer([&] { EXPECT_EQ(::write(ends[1], "x", 1), 1); });
    EXPECT_EQ(engine_->wait(1), 1u);
    writer.join();
  });
  EXPECT_EQ(collector_.of(0).error, 0);
  EXPECT_EQ(byte, std::byte{'x'});
  for (const int end : ends) ::close(end);
}

TEST_P(ChangingThreads, RegisterWhatOthersUseAndGiveBack) {
  const Bytes out(kParts * kPartBytes);
  out.fill_pattern(2);
  bool has_memory = false, has_file = false;
  on_a_thread([&] {
    has_memory = engine_->register_buffer(out.span());
    has_file = engine_->register_file(file_.fd());
  });
  on_a_thread([&] {
    engine_->submit(requests(OpKind::write, out));
    engine_->wait(kParts);
  });
  expect_all_done();
  EXPECT_EQ(engine_->stats().registered_pieces > 0, has_memory);
  EXPECT_EQ(engine_->stats().registered_file_pieces > 0, has_file);
  on_a_thread([&] {
    if (has_memory) engine_->unregister_buffer(out.span());
    if (has_file) engine_->unregister_file(file_.fd());
  });
}

TEST_P(ChangingThreads, AnAddressThatIsNoneFailsWhoeverWaits) {
  if (GetParam().kind == EngineKind::libaio) GTEST_SKIP() << "some systems fail the whole io_submit";
  const Bytes bytes(kBlock);
  ASSERT_EQ(run(*engine_, collector_, collector_.to(OpKind::write, file_.fd(), 0, bytes.span())).error, 0);
  collector_.completions.clear();
  auto* const nowhere = reinterpret_cast<std::byte*>(uintptr_t{4096});
  const Request request = collector_.to(OpKind::read, file_.fd(), 0, {nowhere, kBlock});
  on_a_thread([&] { engine_->submit({&request, 1}); });
  on_a_thread([&] { engine_->wait(1); });
  EXPECT_EQ(collector_.of(0).error, EFAULT);
}

INSTANTIATE_TEST_SUITE_P(Ways, ChangingThreads,
                         ::testing::Values(Way{"io_uring", EngineKind::io_uring},
                                           Way{"io_uring_buffered", EngineKind::io_uring, false},
                                           Way{"libaio", EngineKind::libaio},
                                           Way{"libaio_buffered", EngineKind::libaio, false},
                                           Way{"threads", EngineKind::threads},
                                           Way{"threads_buffered", EngineKind::threads, false}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace terrace::io::changing_threads_test
