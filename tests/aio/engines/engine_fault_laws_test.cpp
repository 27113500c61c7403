// The laws of io::Engine when things go wrong, the same for every kind: at every piece of a run.
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>

#include <terrace/aio/engines/fault_transport.h>

#include "aio/aio_support.h"
#include "aio/engines/repeated_mapping.h"

namespace terrace::io::engine_fault_laws_test {
namespace {

constexpr uint64_t kBlock = 16 * kKiB;
constexpr uint32_t kDepth = 4;

// Writes and reads of awkward sizes: less than a block, a whole one, some more, several times the depth, and
// a tail. With the pieces it is cut into.
struct Part {
  uint64_t offset;
  uint64_t bytes;
};
constexpr std::array<Part, 6> kParts = {{{0, 2},
                                         {kBlock, kBlock - 1},
                                         {3 * kBlock + 77, kBlock},
                                         {5 * kBlock, 2 * kBlock + 513},
                                         {9 * kBlock + 1, (kDepth + 1) * kBlock + 4097},
                                         {20 * kBlock, 4096}}};
constexpr uint64_t kFileBytes = 21 * kBlock;
constexpr uint64_t kPieces = 1 + 1 + 1 + 3 + 6 + 1;  // of the writes, and as many of the reads

class EngineFaultLaws : public ::testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << name_of(GetParam()) << " does not work here: " << probe.reason.text;
  }

  std::unique_ptr<Engine> engine_with(std::vector<Fault> faults, uint64_t block_bytes = kBlock) {
    const EngineOptions options{.kind = GetParam(), .queue_depth = kDepth, .block_bytes = block_bytes};
    return make_engine_over(std::make_unique<FaultTransport>(make_transport(options), std::move(faults)),
                            options);
  }

  // All writes at once, then all reads; the completion of each by its place, reads after writes.
  std::vector<Completion> run_all(Engine& engine, const File& file, const Bytes& out, const Bytes& in) {
    collector_.completions.clear();
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      std::vector<Request> requests;
      for (size_t i = 0; i < kParts.size(); ++i) {
        const std::span<std::byte> memory = (kind == OpKind::write ? out : in).span();
        requests.push_back(collector_.to(kind, file.fd(), kParts[i].offset,
                                         memory.subspan(kParts[i].offset, kParts[i].bytes),
                                         i + (kind == OpKind::read ? kParts.size() : 0)));
      }
      engine.submit(requests);
      while (engine.in_flight() > 0) engine.wait(1);
    }
    std::vector<Completion> completions;
    for (size_t i = 0; i < 2 * kParts.size(); ++i) completions.push_back(collector_.of(i));
    return completions;
  }

  ScratchFolder folder_;
  Collector collector_;
};

TEST_P(EngineFaultLaws, WhatASystemMayAskToTryAgainIsHiddenAtEveryPiece) {
  const File file = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  const Bytes out(kFileBytes), in(kFileBytes);
  const std::vector<Fault> kinds = {{.kind = FaultKind::fail, .error = EINTR},
                                    {.kind = FaultKind::fail, .error = EAGAIN},
                                    {.kind = FaultKind::short_transfer, .bytes = 1}};
  uint64_t seed = 0;
  for (Fault fault : kinds) {
    // One engine for all: a run has all its pieces and the one that is tried again.
    std::vector<Fault> faults;
    for (uint64_t round = 0; round < 2 * kPieces; ++round) {
      fault.index = round * (2 * kPieces + 1) + round;
      faults.push_back(fault);
    }
    const std::unique_ptr<Engine> engine = engine_with(faults);
    for (uint64_t round = 0; round < 2 * kPieces; ++round) {
      SCOPED_TRACE(fmt::format("kind {}, error {}, piece {}", int(fault.kind), fault.error, round));
      out.fill_pattern(++seed);
      in.fill(std::byte{0});
      for (const Completion& completion : run_all(*engine, file, out, in)) ASSERT_EQ(completion.error, 0);
      for (const Part& part : kParts) {
        ASSERT_TRUE(std::ranges::equal(out.span().subspan(part.offset, part.bytes),
                                       in.span().subspan(part.offset, part.bytes)));
      }
    }
    EXPECT_EQ(engine->stats().failed, 0u);
    EXPECT_EQ(engine->stats().retries + engine->stats().short_transfers, 2 * kPieces);
  }
}

TEST_P(EngineFaultLaws, AnErrorFailsItsRequestAndNoOtherAtEveryPiece) {
  const File file = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  const Bytes out(kFileBytes), in(kFileBytes);
  const std::unique_ptr<Engine> plain = engine_with({});
  for (const int error : {EIO, ENOSPC}) {
    std::array<uint64_t, 2 * kParts.size()> failures{};
    for (uint64_t index = 0; index < 2 * kPieces; ++index) {
      SCOPED_TRACE(fmt::format("error {}, piece {}", error, index));
      out.fill_pattern(index);
      in.fill(std::byte{0});
      // Written whole before, so that a failed write has something to leave.
      run_all(*plain, file, out, in);
      const std::unique_ptr<Engine> engine =
          engine_with({{.index = index, .kind = FaultKind::fail, .error = error}});
      const std::vector<Completion> completions = run_all(*engine, file, out, in);
      uint64_t failed = 0;
      for (size_t i = 0; i < completions.size(); ++i) {
        const Part& part = kParts[i % kParts.size()];
        if (completions[i].error == 0) {
          ASSERT_EQ(completions[i].bytes, part.bytes);
          continue;
        }
        ++failed;
        ++failures[i];
        EXPECT_EQ(completions[i].error, error);
        EXPECT_LT(completions[i].bytes, part.bytes);
        EXPECT_TRUE(std::ranges::equal(out.span().subspan(part.offset, completions[i].bytes),
                                       in.span().subspan(part.offset, completions[i].bytes)))
            << "the bytes before the failure are there";
      }
      EXPECT_EQ(failed, 1u);
      EXPECT_EQ(engine->stats().failed, 1u);
      EXPECT_EQ(engine->in_flight(), 0u);
    }
    EXPECT_EQ(std::count(failures.begin(), failures.end(), 0u), 0) << "every request had its turn";
  }
}

TEST_P(EngineFaultLaws, WorksInMemoryWhereThereIsNoDirectAccess) {
  const std::filesystem::path memory = "/dev/shm";
  if (!std::filesystem::is_directory(memory)) GTEST_SKIP() << "no file system in memory here";
  const ScratchFolder folder(memory);
  const File file =
      File::open(folder / "file", {.access = FileAccess::read_write, .create = true, .direct = true});
  EXPECT_FALSE(file.direct());
  EXPECT_FALSE(file.direct_refusal().empty());
  const Bytes out(kFileBytes), in(kFileBytes);
  out.fill_pattern(3);
  const std::unique_ptr<Engine> engine = engine_with({});
  for (const Completion& completion : run_all(*engine, file, out, in)) EXPECT_EQ(completion.error, 0);
  for (const Part& part : kParts) {
    EXPECT_TRUE(std::ranges::equal(out.span().subspan(part.offset, part.bytes),
                                   in.span().subspan(part.offset, part.bytes)));
  }
}

// Of a sparse file past the page cache: the system fills in zeros and touches no disk.
TEST_P(EngineFaultLaws, ReadsRequestsOfMoreThanTwoAndFourGibibytesToTheirLastByte) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer looks at every byte a thread writes";
#endif
  constexpr uint64_t kBlockBytes = 32 * kMiB;
  for (const uint64_t bytes : {2 * kGiB + 512 * 3, 4 * kGiB + kMiB + 512 * 5}) {
    const std::filesystem::path path = folder_ / fmt::format("sparse {}", bytes);
    File file = File::open(path, {.access = FileAccess::read_write, .create = true, .direct = true});
    if (!file.direct()) GTEST_SKIP() << "4 GiB would go through the page cache: " << file.direct_refusal();
    if (512 % file.alignment_bytes() != 0) GTEST_SKIP() << "the tail would not be aligned";
    file.resize(bytes);
    const Bytes end(4096);
    end.fill_pattern(bytes);
    const std::unique_ptr<Engine> engine = engine_with({}, kBlockBytes);
    const uint64_t end_bytes = bytes % 4096;
    ASSERT_EQ(
        run(*engine, collector_,
            collector_.to(OpKind::write, file.fd(), bytes - end_bytes, end.span().subspan(0, end_bytes)))
            .error,
        0);
    const RepeatedMapping memory(bytes);
    const Completion completion =
        run(*engine, collector_, collector_.to(OpKind::read, file.fd(), 0, memory.span(bytes)));
    EXPECT_EQ(completion.error, 0);
    EXPECT_EQ(completion.bytes, bytes);
    EXPECT_TRUE(
        std::ranges::equal(memory.span(bytes).subspan(bytes - end_bytes), end.span().subspan(0, end_bytes)));
    std::filesystem::remove(path);
  }
}

uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("no RssAnon in /proc/self/status");
}

TEST_P(EngineFaultLaws, TenThousandOperationsWithFaultsLeaveMemoryAndDescriptorsAsTheyWere) {
  const File file = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
  const Bytes out(kFileBytes), in(kFileBytes);
  const std::unique_ptr<Engine> engine =
      engine_with({{.kind = FaultKind::fail, .error = EIO, .every = 7},
                   {.kind = FaultKind::fail, .error = EINTR, .every = 5},
                   {.kind = FaultKind::short_transfer, .bytes = 999, .every = 3}});
  uint64_t failed = 0;
  const auto operate = [&](uint64_t count) {
    for (uint64_t done = 0; done < count; done += 2 * kParts.size()) {
      for (const Completion& completion : run_all(*engine, file, out, in))
        failed += completion.error != 0 ? 1 : 0;
    }
  };
  operate(2000);
  const size_t descriptors = open_descriptors();
  const uint64_t bytes = anonymous_bytes();
  operate(10'000);
  EXPECT_EQ(open_descriptors(), descriptors);
#ifndef __SANITIZE_ADDRESS__  // which keeps what was freed for a while
  EXPECT_LE(anonymous_bytes(), bytes + 64 * kKiB);
#else
  static_cast<void>(bytes);
#endif
  EXPECT_GT(failed, 1000u);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineFaultLaws,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace terrace::io::engine_fault_laws_test
