#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/host/pages.h>

#include "os_memory.h"

namespace terrace::pages_test {
namespace {

std::byte* at(const PageMapping& mapping, uint64_t offset = 0) {
  return mapping.memory().data() + offset;
}

TEST(PageMapping, IsAlignedZeroedAndThereAtOnce) {
  const PageMapping mapping = PageMapping::populated(3 * page_bytes(), false, "a test");
  EXPECT_EQ(mapping.memory().size(), 3 * page_bytes());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at(mapping)) % kHugePageBytes, 0u);
  EXPECT_EQ(resident_bytes(mapping.memory()), 3 * page_bytes());
  EXPECT_TRUE(std::all_of(mapping.memory().begin(), mapping.memory().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(PageMapping, OfBareAddressesFaultsAndCostsNoMemory) {
  constexpr uint64_t kBytes = 64 * kGiB;  // more than any test machine has
  const PageMapping mapping = PageMapping::inaccessible(kBytes);
  EXPECT_EQ(mapping.memory().size(), kBytes);
  EXPECT_FALSE(is_readable(at(mapping)));
  EXPECT_FALSE(is_readable(at(mapping, kBytes - 1)));
  EXPECT_EQ(smaps_bytes(mapping.memory(), "Rss:"), 0u);
}

TEST(PageMapping, SaysWhatItWasForWhenTheSystemHasNotGotIt) {
  try {
    const PageMapping mapping = PageMapping::populated(uint64_t{1} << 46, true, "the host tier");
    FAIL() << "64 TiB were mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_EQ(error.parts().subject, "the host tier");
    EXPECT_NE(error.parts().reason.find("ENOMEM"), std::string::npos) << error.what();
  }
}

TEST(PageMapping, MovesItsOwnership) {
  PageMapping first = PageMapping::populated(page_bytes(), false, "a test");
  std::byte* const address = at(first);
  PageMapping second = std::move(first);
  EXPECT_EQ(at(second), address);
  EXPECT_TRUE(first.memory().empty());  // NOLINT: moved-from on purpose
  { const PageMapping third = std::move(second); }
  EXPECT_FALSE(is_readable(address));
}

class MovePages : public ::testing::TestWithParam<MoveMethod> {
 protected:
  void SetUp() override {
    if (GetParam() == MoveMethod::keep_source && probe_move_method() != MoveMethod::keep_source) {
      GTEST_SKIP() << "this kernel has no MREMAP_DONTUNMAP";
    }
  }
};

TEST_P(MovePages, KeepsTheBytesAndShutsTheSource) {
  const uint64_t bytes = 4 * page_bytes();
  const PageMapping home = PageMapping::populated(3 * bytes, false, "a test");
  const PageMapping flat = PageMapping::inaccessible(5 * bytes);
  for (uint64_t i = 0; i < home.memory().size(); ++i) home.memory()[i] = static_cast<std::byte>(i * 31 >> 3);
  const std::vector<std::byte> before(home.memory().begin(), home.memory().end());
  std::byte* const source = at(home, bytes);
  std::byte* const destination = at(flat, 2 * bytes);
  for (int round = 0; round < 50; ++round) {
    move_pages(source, destination, bytes, GetParam());
    EXPECT_EQ(std::memcmp(destination, before.data() + bytes, bytes), 0);
    EXPECT_FALSE(is_readable(source));
    EXPECT_FALSE(is_readable(source + bytes - 1));
    EXPECT_FALSE(is_readable(destination - 1));
    EXPECT_FALSE(is_readable(destination + bytes));
    EXPECT_TRUE(is_readable(source - 1));
    EXPECT_TRUE(is_readable(source + bytes));
    move_pages(destination, source, bytes, GetParam());
    EXPECT_FALSE(is_readable(destination));
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), home.memory().begin()));
}

TEST_P(MovePages, KeepsHugePages) {
  const PageMapping home = PageMapping::populated(2 * kHugePageBytes, true, "a test");
  const PageMapping flat = PageMapping::inaccessible(2 * kHugePageBytes);
  if (smaps_bytes(home.memory(), "AnonHugePages:") < 2 * kHugePageBytes)
    GTEST_SKIP() << "no huge pages to be had";
  move_pages(at(home), at(flat, kHugePageBytes), kHugePageBytes, GetParam());
  EXPECT_EQ(smaps_bytes(flat.memory().subspan(kHugePageBytes), "AnonHugePages:"), kHugePageBytes);
  move_pages(at(flat, kHugePageBytes), at(home), kHugePageBytes, GetParam());
  EXPECT_EQ(smaps_bytes(home.memory(), "AnonHugePages:"), 2 * kHugePageBytes);
}

TEST_P(MovePages, SaysWhyItCannot) {
  const PageMapping home = PageMapping::populated(page_bytes(), false, "a test");
  try {
    move_pages(at(home), at(home) + 1, page_bytes(), GetParam());  // not the beginning of a page
    FAIL() << "moved to an odd address";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_NE(error.parts().reason.find("EINVAL"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Both, MovePages, ::testing::Values(MoveMethod::keep_source, MoveMethod::refill_hole),
                         [](const auto& method) {
                           return method.param == MoveMethod::keep_source ? "KeepSource" : "RefillHole";
                         });

// Other threads map and unmap memory of the same size all the time; none of it may land where a slot has just
// left.
TEST(MovePagesWithoutHoles, LetsNoOtherMappingIn) {
  if (probe_move_method() != MoveMethod::keep_source) GTEST_SKIP() << "this kernel has no MREMAP_DONTUNMAP";
  const uint64_t bytes = 16 * page_bytes();
  const PageMapping home = PageMapping::populated(bytes, false, "a test");
  const PageMapping flat = PageMapping::inaccessible(bytes);
  const auto inside = [](const PageMapping& mapping, const void* address) {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= at(mapping) && byte < at(mapping, mapping.memory().size());
  };
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> intruders = 0;
  std::atomic<uint64_t> rounds = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        // A hint makes the kernel prefer exactly these addresses when they are free.
        for (const PageMapping* wanted : {&home, &flat}) {
          void* const mapped = mmap(at(*wanted), page_bytes(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          if (mapped == MAP_FAILED) continue;
          if (inside(home, mapped) || inside(flat, mapped)) {
            intruders.fetch_add(1);
          } else {
            munmap(mapped, page_bytes());
          }
        }
        rounds.fetch_add(1);
      }
    });
  }
  uint64_t moves = 0;
  while ((moves < 3000 || rounds.load() < 3000) && intruders.load() == 0) {
    move_pages(at(home), at(flat), bytes, MoveMethod::keep_source);
    move_pages(at(flat), at(home), bytes, MoveMethod::keep_source);
    ++moves;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(intruders.load(), 0u);
}

}  // namespace
}  // namespace terrace::pages_test
