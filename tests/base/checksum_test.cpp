// The checksum of the formats: the published function, whatever instruction set the library chooses.
#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include <terrace/base/checksum.h>

namespace terrace::checksum_test {
namespace {

TEST(Checksum, OfNothingIsThatOfTheStandard) {
  EXPECT_EQ(checksum_of({}), 0x2d06800538d394c2u);
}

TEST(Checksum, IsXxh3OfEverySizeAndAlignment) {
  std::vector<std::byte> bytes((1 << 20) + 64);
  uint32_t state = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  for (const size_t size :
       {1u, 3u, 4u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 1024u, 4096u, 65536u, 1u << 20}) {
    for (size_t offset = 0; offset < 64; offset += 7) {
      const std::span<const std::byte> part = std::span(bytes).subspan(offset, size);
      EXPECT_EQ(checksum_of(part), XXH3_64bits(part.data(), part.size())) << size << " at " << offset;
    }
  }
}

}  // namespace
}  // namespace terrace::checksum_test
