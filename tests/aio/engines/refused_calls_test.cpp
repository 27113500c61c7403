// What an engine does when the system refuses the calls that serve the engine itself. A filter of the
// kernel's (seccomp) refuses them, on a thread of its own, from some moment of its work on.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

#include <terrace/aio/engines/transport.h>
#include <terrace/aio/io_thread.h>

#include "aio/aio_support.h"
#include "support/few_descriptors.h"

namespace terrace::io::refused_calls_test {
namespace {

constexpr uint32_t kDepth = 4;
constexpr uint64_t kBlock = 16 * kKiB;

// From now on the calling thread's calls of this number fail.
bool refuse(int call, int error) {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{filter.size(), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// On a thread that ends with its filters.
template <typename Body>
void on_a_thread(const Body& body) {
  std::thread(body).join();
}

struct Refusal {
  const char* name;
  EngineKind kind;
  int call;
  int error;
};

class RefusedCalls : public ::testing::TestWithParam<Refusal> {
 protected:
  void SetUp() override {
    if (!probe_engine(GetParam().kind).works) GTEST_SKIP() << "the engine does not work here";
    bool works = false;
    on_a_thread([&] { works = refuse(SYS_getppid, EIO); });
    if (!works) GTEST_SKIP() << "seccomp does not work here";
  }
  std::unique_ptr<Engine> make() {
    return make_engine({.kind = GetParam().kind, .queue_depth = kDepth, .block_bytes = kBlock});
  }
  static bool refuse_its_call() { return refuse(GetParam().call, GetParam().error); }

  ScratchFolder folder_;
  Collector collector_;
};

TEST_P(RefusedCalls, EndEveryRequestOnceWithWhatTheSystemSaid) {
  const File file =
      File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true, .direct = true});
  const Bytes bytes(16 * kBlock);
  bytes.fill_pattern(7);
  on_a_thread([&] {
    const std::unique_ptr<Engine> engine = make();
    const bool registered = engine->register_buffer(bytes.span());
    const bool has_file = engine->register_file(file.fd());
    ASSERT_EQ(run(*engine, collector_, collector_.to(OpKind::write, file.fd(), 0, bytes.span())).error, 0);
    collector_.completions.clear();
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 4; ++i) {
      requests.push_back(collector_.to(OpKind::read, file.fd(), i * 4 * kBlock,
                                       bytes.span().subspan(i * 4 * kBlock, 4 * kBlock), i));
    }
    engine->submit(std::span(requests).first(2));
    ASSERT_TRUE(refuse_its_call());
    engine->submit(std::span(requests).last(2));
    engine->wait(requests.size());
    EXPECT_EQ(engine->in_flight(), 0u);
    ASSERT_EQ(collector_.completions.size(), requests.size());
    // Those that were under way may have ended well before the refusal was noticed.
    for (const Request& request : requests) {
      const Completion completion = collector_.of(request.tag);
      if (completion.error == 0 && request.tag < 2) continue;
      EXPECT_EQ(completion.error, engine_stopped(GetParam().error)) << request.tag;
      const Error error = describe_failure(request, completion, "the file");
      EXPECT_EQ(error.kind(), ErrorKind::io);
      EXPECT_THAT(error.parts().reason, ::testing::HasSubstr(system_reason(GetParam().error)));
      EXPECT_THAT(error.parts().advice.in(Door::cpp), ::testing::HasSubstr("another engine"));
    }
    // What comes later fails at once, and what was registered can be given back.
    EXPECT_EQ(run(*engine, collector_, requests[0]).error, engine_stopped(GetParam().error));
    engine->wake();
    EXPECT_EQ(engine->wait(1), 0u);
    EXPECT_FALSE(engine->register_file(file.fd()));
    if (registered) engine->unregister_buffer(bytes.span());
    if (has_file) engine->unregister_file(file.fd());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Calls, RefusedCalls,
    ::testing::Values(Refusal{"io_uring_enter_EIO", EngineKind::io_uring, SYS_io_uring_enter, EIO},
                      Refusal{"io_uring_enter_EBUSY", EngineKind::io_uring, SYS_io_uring_enter, EBUSY},
                      Refusal{"io_getevents_EIO", EngineKind::libaio, SYS_io_getevents, EIO}),
    [](const auto& instance) { return std::string(instance.param.name); });

// A read of an empty pipe stays in the kernel until somebody writes: the engine may not answer it, whose
// memory would be given back, before the kernel has let go of it.
class RefusedCallsOfRings : public RefusedCalls {};

TEST_P(RefusedCallsOfRings, AnswerNothingThatTheKernelStillWritesTo) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  on_a_thread([&] {
    const std::unique_ptr<Engine> engine = make();
    std::array<std::byte, 1> memory{};
    Request request = collector_.to(OpKind::read, ends[0], 0, memory);
    engine->submit({&request, 1});
    ASSERT_TRUE(refuse_its_call());
    request.tag = 1;
    engine->submit({&request, 1});
    engine->wait(2);
    ASSERT_EQ(collector_.completions.size(), 2u);
    EXPECT_EQ(collector_.of(0).error, engine_stopped(GetParam().error));
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
    char untouched = 0;
    EXPECT_EQ(::read(ends[0], &untouched, 1), 1) << "the kernel still read for a request that had ended";
    EXPECT_EQ(memory[0], std::byte{0});
  });
  for (const int end : ends) ::close(end);
}

// A process that has run out of descriptors is one in which much else is refused.
TEST_P(RefusedCallsOfRings, EndWithoutADescriptorToSpare) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  on_a_thread([&] {
    const std::unique_ptr<Engine> engine = make();
    std::array<std::byte, 1> memory{};
    const Request request = collector_.to(OpKind::read, ends[0], 0, memory);
    engine->submit({&request, 1});
    ASSERT_TRUE(refuse_its_call());
    const terrace::testing::FewDescriptors none(0);
    engine->wait(1);
    ASSERT_EQ(collector_.completions.size(), 1u);
    EXPECT_EQ(collector_.of(0).error, engine_stopped(GetParam().error));
  });
  for (const int end : ends) ::close(end);
}

// A filter that forbids io_uring when it is in use already, as a sandbox does, forbids all its calls.
TEST_P(RefusedCallsOfRings, EndWhereNothingMoreCanBeRegistered) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  for (const bool has_file : {false, true}) {
    on_a_thread([&] {
      const std::unique_ptr<Engine> engine = make();
      if (has_file) engine->register_file(ends[1]);
      std::array<std::byte, 1> memory{};
      const Request request = collector_.to(OpKind::read, ends[0], 0, memory);
      engine->submit({&request, 1});
      ASSERT_TRUE(refuse(SYS_io_uring_register, EPERM));
      ASSERT_TRUE(refuse_its_call());
      engine->wait(1);
      EXPECT_EQ(collector_.of(0).error, engine_stopped(GetParam().error));
    });
    collector_.completions.clear();
  }
  for (const int end : ends) ::close(end);
}

INSTANTIATE_TEST_SUITE_P(Calls, RefusedCallsOfRings,
                         ::testing::Values(Refusal{"EIO", EngineKind::io_uring, SYS_io_uring_enter, EIO},
                                           Refusal{"EBUSY", EngineKind::io_uring, SYS_io_uring_enter, EBUSY}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Calls on every descriptor are refused, and so those on the eventfd that wakes a thread.
class RefusedWakes : public ::testing::TestWithParam<EngineKind> {};

// A wake that fails is late and never lost; work that is under way ends, and no thread stays asleep.
TEST_P(RefusedWakes, DelayWhatIsSubmittedAndLoseNothing) {
  if (!probe_engine(GetParam()).works) GTEST_SKIP() << "the engine does not work here";
  const ScratchFolder folder;
  const File file =
      File::open(folder / "file", {.access = FileAccess::read_write, .create = true, .direct = true});
  const Bytes bytes(256 * 4096);
  std::atomic<int> done{0};
  const auto count = [](void* context, const Completion& completion) noexcept {
    if (completion.error == 0) ++*static_cast<std::atomic<int>*>(context);
  };
  on_a_thread([&] {
    IoThread io(make_engine({.kind = GetParam(), .queue_depth = kDepth}));
    ASSERT_TRUE(refuse(SYS_write, EIO));
    for (uint64_t i = 0; i < 256; ++i) {
      io.submit(Request{OpKind::write, file.fd(), i * 4096, bytes.data() + i * 4096, 4096, count, &done, i},
                i % 3 == 0 ? Priority::critical : Priority::background);
    }
    io.drain();
    EXPECT_EQ(done, 256);
  });
}

TEST_P(RefusedWakes, AreSeenByTheNextReapOnce) {
  if (!probe_engine(GetParam()).works) GTEST_SKIP() << "the engine does not work here";
  on_a_thread([] {
    const std::unique_ptr<Transport> transport = make_transport({.kind = GetParam(), .queue_depth = kDepth});
    std::array<PieceResult, kDepth> results;
    EXPECT_FALSE(transport->reap(results, false).woken);
    ASSERT_TRUE(refuse(SYS_write, EIO));
    transport->wake();
    EXPECT_TRUE(transport->reap(results, false).woken);
    EXPECT_FALSE(transport->reap(results, false).woken);
  });
}

TEST_P(RefusedWakes, ThatCannotBeTakenHoldNothingUp) {
  if (!probe_engine(GetParam()).works) GTEST_SKIP() << "the engine does not work here";
  const ScratchFolder folder;
  const File file =
      File::open(folder / "file", {.access = FileAccess::read_write, .create = true, .direct = true});
  const Bytes bytes(kBlock);
  on_a_thread([&] {
    Collector collector;
    const std::unique_ptr<Engine> engine = make_engine({.kind = GetParam(), .queue_depth = kDepth});
    ASSERT_TRUE(refuse(SYS_read, EIO));
    for (int i = 0; i < 3; ++i) {
      engine->wake();
      const Request request = collector.to(OpKind::write, file.fd(), 0, bytes.span());
      engine->submit({&request, 1});
      while (engine->in_flight() > 0) engine->wait(1);
    }
    EXPECT_EQ(collector.completions.size(), 3u);
    for (const Completion& completion : collector.completions) EXPECT_EQ(completion.error, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, RefusedWakes, ::testing::Values(EngineKind::io_uring, EngineKind::libaio),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

// A container may allow rings and refuse to register anything with them.
TEST(RefusedRegistration, IsNamedAndNotTakenForAnOldKernel) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "the engine does not work here";
  on_a_thread([] {
    if (!refuse(SYS_io_uring_register, EPERM)) GTEST_SKIP() << "seccomp does not work here";
    const ProbeResult refused = probe_engine(EngineKind::io_uring);
    EXPECT_FALSE(refused.works);
    EXPECT_THAT(refused.reason, ::testing::HasSubstr("io_uring_register: " + system_reason(EPERM)));
    EXPECT_THAT(refused.reason, ::testing::HasSubstr("seccomp"));
    EXPECT_THAT(refused.reason, ::testing::Not(::testing::HasSubstr("Linux 5.6")));
  });
}

}  // namespace
}  // namespace terrace::io::refused_calls_test
