#include <terrace/aio/ring_buffer.h>

#include <set>
#include <thread>

#include "aio/aio_support.h"

namespace terrace::io::ring_buffer_test {
namespace {

TEST(RingBuffer, HandsOutEverySlotOnceAndThenNone) {
  RingBuffer ring(RingOptions{.slot_bytes = 768 * kKiB, .slot_count = 5});
  std::vector<std::span<std::byte>> slots;
  std::set<std::byte*> places;
  for (int i = 0; i < 5; ++i) {
    slots.push_back(ring.acquire());
    ASSERT_EQ(slots.back().size(), 768 * kKiB);
    places.insert(slots.back().data());
    std::fill(slots.back().begin(), slots.back().end(), std::byte{static_cast<unsigned char>(i)});
  }
  EXPECT_EQ(places.size(), 5u);
  EXPECT_TRUE(ring.acquire().empty());
  EXPECT_EQ(ring.free_count(), 0u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(slots[static_cast<size_t>(i)].front(), std::byte{static_cast<unsigned char>(i)});
    EXPECT_EQ(slots[static_cast<size_t>(i)].back(), std::byte{static_cast<unsigned char>(i)});
    ring.release(slots[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(ring.free_count(), 5u);
}

TEST(RingBuffer, ReusesTheSlotReleasedLastSoThatItStaysInTheCache) {
  RingBuffer ring(RingOptions{.slot_bytes = 4096, .slot_count = 8});
  const std::span<std::byte> first = ring.acquire();
  const std::span<std::byte> second = ring.acquire();
  ring.release(first);
  ring.release(second);
  for (int i = 0; i < 100; ++i) {
    const std::span<std::byte> slot = ring.acquire();
    EXPECT_EQ(slot.data(), second.data());
    ring.release(slot);
  }
}

TEST(RingBuffer, LiesOnTwoMebibyteBoundariesInsideWhatIsRegistered) {
  RingBuffer ring(RingOptions{.slot_bytes = 768 * kKiB, .slot_count = 7});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ring.memory().data()) % (2 * kMiB), 0u);
  EXPECT_EQ(ring.memory().size(), 6 * kMiB) << "5.25 MiB of slots in whole pages";
  EXPECT_EQ(ring.slot_count(), 7u);
  const std::span<std::byte> slot = ring.acquire();
  EXPECT_GE(slot.data(), ring.memory().data());
  EXPECT_LE(slot.data() + slot.size(), ring.memory().data() + ring.memory().size());
  ring.release(slot);
}

TEST(RingBuffer, TouchesItsMemoryBeforeItReturns) {
  RingBuffer ring(RingOptions{.slot_bytes = kMiB, .slot_count = 4});
  std::vector<unsigned char> resident(ring.memory().size() / 4096);
  ASSERT_EQ(mincore(ring.memory().data(), ring.memory().size(), resident.data()), 0);
  EXPECT_EQ(
      std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; }),
      static_cast<std::ptrdiff_t>(resident.size()));
}

TEST(RingBuffer, GivesItsMemoryBack) {
  std::byte* place = nullptr;
  uint64_t bytes = 0;
  {
    RingBuffer ring(RingOptions{.slot_bytes = kMiB, .slot_count = 32});
    place = ring.memory().data();
    bytes = ring.memory().size();
  }
  std::vector<unsigned char> resident(bytes / 4096);
  EXPECT_EQ(mincore(place, bytes, resident.data()), -1);
  EXPECT_EQ(errno, ENOMEM) << "nothing is mapped there any more";
}

TEST(RingBuffer, WorksOverMemoryOfTheCallers) {
  const Bytes memory(10 * 4096 + 4000);
  RingBuffer ring(memory.span(), 2 * 4096);
  EXPECT_EQ(ring.slot_count(), 5u);
  EXPECT_EQ(ring.memory().data(), memory.data());
  const std::span<std::byte> slot = ring.acquire();
  EXPECT_EQ(slot.data(), memory.data());
  EXPECT_EQ(slot.size(), 2u * 4096);
  ring.release(slot);
}

TEST(RingBuffer, RefusesMoreThanThereIs) {
  try {
    RingBuffer ring(RingOptions{.slot_bytes = kGiB, .slot_count = 1u << 20});
    ADD_FAILURE() << "a pebibyte was mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
  }
}

TEST(RingBuffer, MayBeUsedByThreadsAtOnce) {
  RingBuffer ring(RingOptions{.slot_bytes = 4096, .slot_count = 3});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&ring, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::span<std::byte> slot = ring.acquire();
        if (slot.empty()) continue;
        std::fill(slot.begin(), slot.end(), static_cast<std::byte>(t));
        if (slot.front() != static_cast<std::byte>(t) || slot.back() != static_cast<std::byte>(t))
          std::abort();
        ring.release(slot);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ring.free_count(), 3u);
}

TEST(RingBufferDeathTest, RefusesWhatIsNotASlotThatIsOut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RingBuffer ring(RingOptions{.slot_bytes = 4096, .slot_count = 3});
  const std::span<std::byte> slot = ring.acquire();
  const Bytes other(4096);
  EXPECT_DEATH(ring.release(other.span()), "not of this ring");
  EXPECT_DEATH(ring.release(slot.first(10)), "not a whole slot");
  EXPECT_DEATH(ring.release(slot.subspan(1)), "not a whole slot");
  EXPECT_DEATH((ring.release(slot), ring.release(slot)), "is not out");
  ring.release(slot);
}

}  // namespace
}  // namespace terrace::io::ring_buffer_test
