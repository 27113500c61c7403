// io_uring's options: with each of them an engine does the same, and where the system refuses one it does
// without and says why.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <random>
#include <thread>

#include <terrace/aio/io_thread.h>

#include "aio/aio_support.h"

namespace terrace::io::uring_options_test {
namespace {

struct Mode {
  const char* name;
  bool sqpoll;
  bool iopoll;
};

constexpr uint32_t kDepth = 4;
constexpr uint64_t kBlock = 16 * kKiB;

class UringOptions : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
    engine_ = make_engine(options(), log_);
  }
  static EngineOptions options() {
    return {.kind = EngineKind::io_uring,
            .queue_depth = kDepth,
            .block_bytes = kBlock,
            .backlog_count = 8,
            .io_uring_sqpoll = GetParam().sqpoll,
            .io_uring_iopoll = GetParam().iopoll};
  }

  MemoryLog log_;
  ScratchFolder folder_;
  Collector collector_;
  std::unique_ptr<Engine> engine_;
};

// A mirror in memory says what the files hold: three files, one buffered and so never polled, registered or
// not, from registered memory or not, more requests than the engine holds.
TEST_P(UringOptions, MoveTheSameBytes) {
  constexpr uint64_t kParts = 24;
  constexpr uint64_t kPartBytes = 3 * kBlock;
  constexpr uint64_t kSeed = 20261121;
  std::mt19937_64 random(kSeed);
  std::vector<File> files;
  std::vector<Bytes> mirrors;
  for (int i = 0; i < 3; ++i) {
    files.push_back(File::open(folder_ / std::to_string(i),
                               {.access = FileAccess::read_write, .create = true, .direct = i != 2}));
    mirrors.emplace_back(kParts * kPartBytes);
  }
  const Bytes memory(kParts * kPartBytes), plain(kParts * kPartBytes);
  const bool has_memory = engine_->register_buffer(memory.span());
  const bool has_file = engine_->register_file(files[0].fd());
  for (uint64_t round = 0; round < 12; ++round) {
    const uint64_t which = round % 3;
    const Bytes& buffer = random() % 2 == 0 ? memory : plain;
    buffer.fill_pattern(kSeed + round);
    std::vector<Request> requests;
    for (uint64_t part = 0; part < kParts; ++part) {
      const std::span<std::byte> bytes = buffer.span().subspan(part * kPartBytes, kPartBytes);
      requests.push_back(collector_.to(OpKind::write, files[which].fd(), part * kPartBytes, bytes, part));
      std::ranges::copy(bytes, mirrors[which].span().subspan(part * kPartBytes).begin());
    }
    std::shuffle(requests.begin(), requests.end(), random);
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      for (Request& request : requests) request.kind = kind;
      if (kind == OpKind::read) buffer.fill(std::byte{0});
      collector_.completions.clear();
      engine_->submit(requests);
      engine_->wait(kParts);
      for (uint64_t part = 0; part < kParts; ++part) ASSERT_EQ(collector_.of(part).error, 0);
    }
    ASSERT_TRUE(buffer == mirrors[which]) << "round " << round << ", seed " << kSeed;
  }
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.bytes_read, stats.bytes_written);
  EXPECT_EQ(stats.registered_file_pieces, has_file ? 4 * 2 * kParts * 3 : 0);
  EXPECT_EQ(stats.registered_pieces > 0, has_memory);
  EXPECT_LE(stats.registered_pieces, stats.pieces) << "what is started again elsewhere is one piece";
  EXPECT_EQ(stats.submit_calls == 0, GetParam().sqpoll && !GetParam().iopoll);
  EXPECT_LE(stats.peak_pieces_in_flight, kDepth);
  if (has_memory) engine_->unregister_buffer(memory.span());
}

TEST_P(UringOptions, ReportWhatFails) {
  const File file = File::open(folder_ / "short", {.access = FileAccess::read_write, .create = true});
  const Bytes bytes(2 * kBlock);
  EXPECT_EQ(run(*engine_, collector_, collector_.to(OpKind::write, file.fd(), 0, bytes.span())).error, 0);
  const Completion beyond =
      run(*engine_, collector_, collector_.to(OpKind::read, file.fd(), kBlock, bytes.span()));
  EXPECT_EQ(beyond.error, kEndOfFile);
  EXPECT_EQ(beyond.bytes, kBlock);
  EXPECT_EQ(run(*engine_, collector_, collector_.to(OpKind::read, 1'000'000, 0, bytes.span())).error, EBADF);
}

// Without the wake these would wait for ever.
TEST_P(UringOptions, AWakeEndsTheWaitInProgressAndTheNextOne) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  std::byte byte{};
  Request request = collector_.to(OpKind::read, pipe_ends[0], 0, {&byte, 1});
  engine_->wake();
  engine_->submit({&request, 1});
  engine_->wait(1);
  EXPECT_EQ(engine_->in_flight(), 1u);
  std::thread waker([&] { engine_->wake(); });
  engine_->wait(1);
  waker.join();
  EXPECT_EQ(engine_->in_flight(), 1u);
  ASSERT_EQ(::write(pipe_ends[1], "x", 1), 1);
  engine_->wait(1);
  EXPECT_EQ(engine_->in_flight(), 0u);
  EXPECT_EQ(byte, std::byte{'x'});
  for (const int end : pipe_ends) ::close(end);
}

TEST_P(UringOptions, ServeAnIoThread) {
  const File file =
      File::open(folder_ / "thread", {.access = FileAccess::read_write, .create = true, .direct = true});
  const Bytes bytes(64 * 4096);
  std::atomic<int> done{0};
  const auto count = [](void* context, const Completion& completion) noexcept {
    if (completion.error == 0) ++*static_cast<std::atomic<int>*>(context);
  };
  {
    IoThread io(make_engine(options(), log_));
    for (uint64_t i = 0; i < 64; ++i) {
      io.submit(Request{OpKind::write, file.fd(), i * 4096, bytes.data() + i * 4096, 4096, count, &done, i},
                i % 3 == 0 ? Priority::critical : Priority::background);
    }
    io.drain();
    EXPECT_EQ(done, 64);
  }
  EXPECT_EQ(file.size_bytes(), bytes.size());
}

TEST_P(UringOptions, EnginesComeAndGoUnusedWithoutATrace) {
  engine_.reset();
  const size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) make_engine(options(), log_);
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Modes, UringOptions,
                         ::testing::Values(Mode{"sqpoll", true, false}, Mode{"iopoll", false, true},
                                           Mode{"both", true, true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Memory has no queues to poll.
TEST(UringPolling, GoesOnWithoutWhereAFileRefusesAndSaysSoOnce) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
  MemoryLog log;
  const std::unique_ptr<Engine> engine = make_engine({.queue_depth = 4, .io_uring_iopoll = true}, log);
  EXPECT_TRUE(log.lines().empty()) << "no file has refused yet";
  Collector collector;
  const Bytes out(8 * 4096), in(8 * 4096);
  out.fill_pattern(9);
  for (int i = 0; i < 2; ++i) {
    const int fd = memfd_create("file", MFD_CLOEXEC);
    EXPECT_EQ(run(*engine, collector, collector.to(OpKind::write, fd, 0, out.span())).error, 0);
    EXPECT_EQ(run(*engine, collector, collector.to(OpKind::read, fd, 0, in.span())).error, 0);
    EXPECT_TRUE(in == out);
    if (i == 1) ::close(fd);
  }
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(
      log.lines()[0].text,
      "io_uring_iopoll has no effect on some files: Operation not supported (EOPNOTSUPP). Polling takes "
      "a device with queues for it (of nvme: the module's poll_queues) and direct I/O");
  EXPECT_EQ(engine->stats().pieces, 4u);
  EXPECT_EQ(engine->stats().submit_calls, 6u) << "each file is asked once: its first piece goes twice";
}

// An ordinary user who may start no more threads: the kernel's thread counts as one of the process.
[[noreturn]] void ask_for_a_kernel_thread_too_many() {
  const rlimit limit{0, 0};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0))
    _exit(77);
  MemoryLog log;
  const std::unique_ptr<Engine> engine = make_engine({.queue_depth = 4, .io_uring_sqpoll = true}, log);
  for (const MemoryLog::Line& line : log.lines()) std::cerr << line.text << "\n";
  const int fd = memfd_create("file", MFD_CLOEXEC);
  Collector collector;
  const Bytes bytes(4096);
  std::cerr << "error " << run(*engine, collector, collector.to(OpKind::write, fd, 0, bytes.span())).error
            << ", " << engine->stats().submit_calls << " calls\n";
  _exit(0);
}

TEST(UringKernelThreadDeathTest, IsLeftOffWhereItCannotBeStarted) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ask_for_a_kernel_thread_too_many(), ::testing::ExitedWithCode(0),
              "io_uring_sqpoll is left off: io_uring_setup: .*\n"
              "error 0, 1 calls");
}

}  // namespace
}  // namespace terrace::io::uring_options_test
