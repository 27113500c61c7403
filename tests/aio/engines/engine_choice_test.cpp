// Probing, choosing and making engines, also where the system forbids the best one.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <iostream>

#include <terrace/aio/ring_buffer.h>

#include "aio/aio_support.h"
#include "support/enum_values.h"
#include "support/few_descriptors.h"

namespace terrace::io::engine_choice_test {
namespace {

TEST(EngineKinds, HaveNamesThatReadBack) {
  for (const EngineKind kind : engine_kinds()) EXPECT_EQ(engine_kind_from_name(name_of(kind)), kind);
  EXPECT_EQ(engine_kinds().size(), terrace::testing::enumerator_count<EngineKind>());
  EXPECT_EQ(name_of(EngineKind::io_uring), "io_uring");
  EXPECT_EQ(name_of(EngineKind::threads), "threads");
  EXPECT_EQ(name_of(EngineKind::libaio), "libaio");
  EXPECT_EQ(engine_kind_from_name("posix_aio"), std::nullopt);
  EXPECT_EQ(engine_kind_from_name(""), std::nullopt);
}

TEST(ChooseEngine, TakesWhatWorksAndSaysSo) {
  EXPECT_TRUE(probe_engine(EngineKind::threads).works);
  const EngineChoice threads = choose_engine(EngineKind::threads);
  EXPECT_EQ(threads.kind, EngineKind::threads);
  EXPECT_EQ(threads.reason, "I/O engine threads, as it was asked for");
  const EngineChoice best = choose_engine(std::nullopt);
  const auto works = [](EngineKind kind) { return probe_engine(kind).works; };
  EXPECT_EQ(best.kind, *std::find_if(engine_kinds().begin(), engine_kinds().end(), works));
  EXPECT_FALSE(best.reason.empty());
}

TEST(ChooseEngine, LeavesNoDescriptorBehind) {
  const size_t before = open_descriptors();
  choose_engine(std::nullopt);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ChooseEngine, KeepsWhatTheSystemSays) {
  const terrace::testing::FewDescriptors none(0);
  EXPECT_EQ(probe_engine(EngineKind::threads).reason.error_number, EMFILE);
  for (const std::optional<EngineKind> wanted :
       {std::optional(EngineKind::threads), std::optional<EngineKind>()}) {
    try {
      choose_engine(wanted);
      ADD_FAILURE() << "an engine was chosen";
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().error_number, EMFILE) << error.what();
      EXPECT_EQ(error.parts().advice, advice_on_limit(EMFILE));
    }
  }
}

// Makes a system call fail with EPERM in this process, as containers do.
void forbid(uint32_t system_call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::cerr << "cannot install a seccomp filter\n";
    _exit(77);
  }
}

[[noreturn]] void choose_in_a_container() {
  forbid(__NR_io_uring_setup);
  EngineChoice choice = choose_engine(std::nullopt);
  std::cerr << name_of(choice.kind) << " chosen: " << choice.reason << "\n";
  forbid(__NR_io_setup);
  choice = choose_engine(std::nullopt);
  std::cerr << name_of(choice.kind) << " chosen: " << choice.reason << "\n";
  try {
    choose_engine(EngineKind::io_uring);
  } catch (const Error& error) {
    std::cerr << "refused: " << error.what() << "\n";
  }
  try {
    make_engine({.kind = EngineKind::io_uring});
  } catch (const Error& error) {
    std::cerr << "not made: " << error.what() << "\n";
  }
  _exit(0);
}

TEST(ChooseEngineDeathTest, FallsBackToTheNextEngineWhereOneIsForbidden) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      choose_in_a_container(), ::testing::ExitedWithCode(0),
      "libaio chosen: I/O engine libaio; io_uring does not work here \\(io_uring_setup: Operation not "
      "permitted \\(EPERM\\)\\)\n"
      "threads chosen: I/O engine threads; io_uring does not work here \\(.*\\) libaio does not work here "
      "\\(io_setup: Operation not permitted \\(EPERM\\)\\)\n"
      "refused: cannot use the I/O engine \"io_uring\": io_uring_setup: Operation not permitted \\(EPERM\\)\n"
      ".*\n"
      "not made: cannot create the I/O engine \"io_uring\": io_uring_setup: Operation not permitted");
}

// As an ordinary user with the customary 8 MiB of lockable memory.
[[noreturn]] void register_too_much() {
  const int fd = memfd_create("file", MFD_CLOEXEC);
  const rlimit limit{8 * kMiB, 8 * kMiB};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0))
    _exit(77);
  const std::unique_ptr<Engine> engine = engine_of(EngineKind::io_uring);
  RingBuffer ring(RingOptions{.slot_bytes = kMiB, .slot_count = 16});
  const bool accepted = engine->register_buffer(ring.memory());
  std::cerr << (accepted ? "accepted" : "refused: ") << engine->registration_refusal() << "\n";
  Collector collector;
  const std::span<std::byte> slot = ring.acquire();
  const Completion completion = run(*engine, collector, collector.to(OpKind::write, fd, 0, slot));
  std::cerr << "error " << completion.error << ", " << engine->stats().registered_pieces
            << " registered pieces\n";
  ring.release(slot);
  _exit(0);
}

TEST(RegisterBufferDeathTest, CarriesOnWithoutWhereTooLittleMemoryMayBeLocked) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(register_too_much(), ::testing::ExitedWithCode(0),
              "refused: io_uring_register of 16.0 MiB: Cannot allocate memory \\(ENOMEM\\); RLIMIT_MEMLOCK "
              "is 8.00 MiB\n"
              "error 0, 0 registered pieces");
}

TEST(RegisterBuffer, TakesMemoryInPiecesOfAGibibyte) {
  if (!probe_engine(EngineKind::io_uring).works) GTEST_SKIP() << "io_uring does not work here";
  const std::unique_ptr<Engine> engine = engine_of(EngineKind::io_uring, 4, 64 * kKiB);
  // One shared page of zeros would do, but what is registered is pinned: 2 MiB, mapped 513 times.
  const int fd = memfd_create("repeated", MFD_CLOEXEC);
  constexpr uint64_t kPart = 2 * kMiB;
  constexpr uint64_t kParts = 513;
  ASSERT_EQ(ftruncate(fd, kPart), 0);
  void* base = mmap(nullptr, kParts * kPart, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(base), kParts * kPart);
  for (uint64_t i = 0; i < kParts; ++i) {
    ASSERT_NE(mmap(memory.data() + i * kPart, kPart, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
              MAP_FAILED);
  }
  if (engine->register_buffer(memory)) {
    ScratchFolder folder;
    const File file = File::open(folder / "file", {.access = FileAccess::read_write, .create = true});
    Collector collector;
    const auto registered_after_write_at = [&](uint64_t offset, uint64_t bytes) {
      const Request request = collector.to(OpKind::write, file.fd(), 0, memory.subspan(offset, bytes));
      EXPECT_EQ(run(*engine, collector, request).error, 0);
      return engine->stats().registered_pieces;
    };
    EXPECT_EQ(registered_after_write_at(0, 4096), 1u);
    EXPECT_EQ(registered_after_write_at(kGiB + kMiB, 4096), 2u);
    EXPECT_EQ(registered_after_write_at(kGiB - 4096, 4096), 3u);
    EXPECT_EQ(registered_after_write_at(kGiB - 2048, 4096), 3u) << "across the cut it goes unregistered";
    engine->unregister_buffer(memory);
    EXPECT_EQ(registered_after_write_at(0, 4096), 3u);
  } else {
    EXPECT_FALSE(engine->registration_refusal().empty());
  }
  munmap(base, kParts * kPart);
  close(fd);
}

}  // namespace
}  // namespace terrace::io::engine_choice_test
