// Registered files, and requests handed over in batches: the same for every engine, counted where they exist.
#include <fcntl.h>
#include <unistd.h>

#include "aio/aio_support.h"

namespace terrace::io::aio_registered_files_test {
namespace {

constexpr uint64_t kBlock = 16 * kKiB;
constexpr uint32_t kDepth = 8;

class RegisteredFiles : public ::testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << name_of(GetParam()) << " does not work here: " << probe.reason.text;
    engine_ = engine_of(GetParam(), kDepth, kBlock);
  }
  File create(const std::string& name) {
    return File::open(folder_ / name, {.access = FileAccess::read_write, .create = true, .direct = true});
  }
  int write(const File& file, const Bytes& bytes) {
    return run(*engine_, collector_, collector_.to(OpKind::write, file.fd(), 0, bytes.span())).error;
  }
  int read(const File& file, const Bytes& bytes) {
    return run(*engine_, collector_, collector_.to(OpKind::read, file.fd(), 0, bytes.span())).error;
  }

  ScratchFolder folder_;
  Collector collector_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(RegisteredFiles, MoveTheSameBytesAndAreCounted) {
  const File file = create("registered");
  const File plain = create("plain");
  const Bytes out(4 * kBlock);
  out.fill_pattern(1);
  const bool registered = engine_->register_file(file.fd());
  EXPECT_EQ(registered, engine_->registration_refusal().empty());
  const uint64_t whole = registered ? 4 : 0;
  ASSERT_EQ(write(file, out), 0);
  EXPECT_EQ(engine_->stats().registered_file_pieces, whole);
  ASSERT_EQ(write(plain, out), 0);
  EXPECT_EQ(engine_->stats().registered_file_pieces, whole) << "the other file is not registered";
  const Bytes in(out.size());
  ASSERT_EQ(read(file, in), 0);
  EXPECT_TRUE(in == out);
  EXPECT_EQ(engine_->stats().registered_file_pieces, 2 * whole);
  if (!registered) return;
  engine_->unregister_file(file.fd());
  ASSERT_EQ(read(file, in), 0);
  EXPECT_EQ(engine_->stats().registered_file_pieces, 2 * whole);
}

TEST_P(RegisteredFiles, WorkTogetherWithRegisteredMemory) {
  const File file = create("both");
  const Bytes memory(2 * kBlock);
  memory.fill_pattern(2);
  const bool has_memory = engine_->register_buffer(memory.span());
  const bool has_file = engine_->register_file(file.fd());
  ASSERT_EQ(write(file, memory), 0);
  EXPECT_EQ(engine_->stats().registered_pieces, has_memory ? 2u : 0u);
  EXPECT_EQ(engine_->stats().registered_file_pieces, has_file ? 2u : 0u);
  const Bytes in(memory.size());
  ASSERT_EQ(read(file, in), 0);
  EXPECT_TRUE(in == memory);
  if (has_memory) engine_->unregister_buffer(memory.span());
}

TEST_P(RegisteredFiles, ANumberThatIsUsedAgainMeansTheNewFile) {
  const Bytes first(kBlock), second(kBlock), in(kBlock);
  first.fill_pattern(3);
  second.fill_pattern(4);
  int number = -1;
  {
    const File file = create("first");
    number = file.fd();
    const bool registered = engine_->register_file(number);
    ASSERT_EQ(write(file, first), 0);
    if (registered) engine_->unregister_file(number);
  }
  const File file = create("second");
  ASSERT_EQ(file.fd(), number) << "the test needs the same number again";
  ASSERT_EQ(write(file, second), 0) << "unregistered";
  const bool registered = engine_->register_file(number);
  ASSERT_EQ(read(file, in), 0);
  EXPECT_TRUE(in == second);
  second.fill_pattern(5);
  ASSERT_EQ(write(file, second), 0) << "registered";
  EXPECT_EQ(engine_->stats().registered_file_pieces, registered ? 3u : 0u);
  const File old = File::open(folder_ / "first", {.direct = true});
  ASSERT_EQ(read(old, in), 0);
  EXPECT_TRUE(in == first) << "nothing went to the file that had the number before";
}

TEST_P(RegisteredFiles, BeyondTheTableAreRefusedAndWorkAllTheSame) {
  std::vector<File> files;
  size_t registered = 0;
  for (int i = 0; i < 70; ++i) {
    files.push_back(create("file " + std::to_string(i)));
    if (engine_->register_file(files.back().fd())) ++registered;
  }
  EXPECT_LT(registered, files.size());
  EXPECT_FALSE(engine_->registration_refusal().empty());
  const Bytes out(4096), in(4096);
  for (const size_t last : {size_t{0}, files.size() - 1}) {
    out.fill_pattern(last);
    ASSERT_EQ(write(files[last], out), 0);
    ASSERT_EQ(read(files[last], in), 0);
    EXPECT_TRUE(in == out);
  }
  if (registered == 0) return;
  engine_->unregister_file(files[0].fd());
  EXPECT_TRUE(engine_->register_file(files.back().fd())) << "its place is free again";
}

TEST_P(RegisteredFiles, AreLetGoOfByUnregisteringAndWithTheEngine) {
  for (const bool by_engine : {false, true}) {
    {
      File file = create(by_engine ? "engine" : "unregistered");
      ASSERT_TRUE(file.try_lock());
      const bool registered = engine_->register_file(file.fd());
      if (by_engine) {
        engine_.reset();
      } else if (registered) {
        engine_->unregister_file(file.fd());
      }
    }
    // The lock ends with the last reference to the open file.
    File again = File::open(folder_ / (by_engine ? "engine" : "unregistered"), {});
    EXPECT_TRUE(again.try_lock()) << "by_engine " << by_engine;
  }
}

TEST_P(RegisteredFiles, OneBurstOfRequestsIsOneSystemCall) {
  const File file = create("burst");
  const Bytes bytes(kDepth * kBlock);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < kDepth; ++i) {
    requests.push_back(
        collector_.to(OpKind::write, file.fd(), i * kBlock, bytes.span().subspan(i * kBlock, kBlock), i));
  }
  engine_->submit(requests);
  engine_->wait(kDepth);
  EXPECT_EQ(engine_->stats().pieces, kDepth);
  EXPECT_EQ(engine_->stats().submit_calls, GetParam() == EngineKind::threads ? 0u : 1u);
  engine_->submit({&requests.front(), 1});
  engine_->wait(1);
  EXPECT_EQ(engine_->stats().submit_calls, GetParam() == EngineKind::threads ? 0u : 2u);
}

TEST(RegisteredFilesDeathTest, ClosingOneBeforeItIsUnregisteredIsNoticedWhenItsNumberComesBack) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto close_too_early = [] {
    const std::unique_ptr<Engine> engine = engine_of(EngineKind::io_uring);
    const int first = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (!engine->register_file(first)) std::abort();
    ::close(first);
    const int second = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    engine->register_file(second);
  };
  EXPECT_DEATH(close_too_early(), "is registered already: it was closed before it was unregistered");
}

INSTANTIATE_TEST_SUITE_P(Engines, RegisteredFiles,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::io::aio_registered_files_test
