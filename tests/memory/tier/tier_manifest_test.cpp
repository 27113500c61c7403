#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <random>

#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/tier_manifest.h>

#include "support/expect_error.h"

namespace terrace::tier_manifest_test {
namespace {

using testing::expect_error;

TierManifest example() {
  TierManifest manifest;
  for (size_t b = 0; b < 16; ++b) manifest.space.bytes[b] = static_cast<std::byte>(b);
  manifest.commit = 12;
  manifest.info = "step 100";
  manifest.info += " ";  // not a multiple of eight
  manifest.stores.push_back(
      {"records", 8192, {20480, 0, 4096}, {3, 4}, {{0, 2, 7}, {1, 3, 8}, {0, 0, 9}, {}}});
  manifest.stores.push_back({"params", 4096, {4096}, {0, 2}, {{1, 0, 10}}});
  return manifest;
}

// With the right checksum behind it.
std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  for (size_t b = 0; b < 8; ++b) bytes[bytes.size() - 8 + b] = static_cast<std::byte>(checksum >> (8 * b));
  return bytes;
}

TEST(TierManifest, GivesBackWhatWasWritten) {
  const TierManifest manifest = example();
  EXPECT_EQ(parse_tier_manifest(serialise(manifest), "m"), manifest);
  TierManifest empty;
  empty.commit = 1;
  EXPECT_EQ(parse_tier_manifest(serialise(empty), "m"), empty);
}

TEST(TierManifest, SaysWhatTilesOfOptimizerStateConsistOf) {
  for (const MasterForm master : {MasterForm::whole, MasterForm::remainder}) {
    for (const uint32_t moments : {0u, 1u, 2u}) {
      for (const MomentType type : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
        TierManifest manifest = example();
        manifest.layout = {master, moments, type};
        EXPECT_EQ(parse_tier_manifest(serialise(manifest), "m"), manifest);
      }
    }
  }
  const std::vector<std::byte> bytes = serialise(example());
  for (const auto& [at, value] : {std::pair(48, 2), {49, 3}, {50, 0}, {50, 3}, {51, 1}, {55, 1}}) {
    std::vector<std::byte> changed = bytes;
    changed[static_cast<size_t>(at)] = static_cast<std::byte>(value);
    expect_error(ErrorKind::corrupt, {"header"}, [&] { parse_tier_manifest(sealed(changed), "m"); });
  }
}

TEST(TierManifest, FindsEveryFlippedByte) {
  const std::vector<std::byte> bytes = serialise(example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> flipped = bytes;
    flipped[at] ^= std::byte{0x40};
    SCOPED_TRACE(at);
    expect_error(ErrorKind::corrupt, {"commit-1.manifest"},
                 [&] { parse_tier_manifest(flipped, "commit-1.manifest"); });
  }
}

TEST(TierManifest, FindsEveryTruncation) {
  const std::vector<std::byte> bytes = serialise(example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    expect_error(ErrorKind::corrupt, {}, [&] { parse_tier_manifest(std::span(bytes).first(size), "m"); });
    if (size < 8) continue;
    expect_error(ErrorKind::corrupt, {}, [&] {
      parse_tier_manifest(sealed({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)}), "m");
    });
  }
}

// The fields that a checksum alone does not protect from a program that writes nonsense.
TEST(TierManifest, RefusesNumbersThatCannotBeWhateverTheirChecksum) {
  const std::vector<std::byte> bytes = serialise(example());
  // In 4-byte words: the whole file but its magic and version; whatever is accepted must be a manifest.
  std::mt19937_64 random(3);
  const uint32_t values[] = {0xffffffff, 0x80000000, 0x7fffffff, 0x10000, 1, 0};
  size_t refused = 0;
  for (size_t at = 12; at + 12 <= bytes.size(); at += 4) {
    for (const uint32_t value : values) {
      std::vector<std::byte> changed = bytes;
      for (size_t b = 0; b < 4; ++b) changed[at + b] = static_cast<std::byte>(value >> (8 * b));
      changed = sealed(changed);
      try {
        EXPECT_EQ(serialise(parse_tier_manifest(changed, "m")), changed);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::corrupt);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST(TierManifest, KeepsTheStepsOfTensors) {
  TierManifest manifest = example();
  manifest.version = 3;
  manifest.tensor_steps = {7, 0, uint64_t{1} << 40};
  const std::vector<std::byte> bytes = serialise(manifest);
  EXPECT_EQ(parse_tier_manifest(bytes, "m"), manifest);
  std::vector<std::byte> none = serialise(example());
  none[8] = std::byte{3};
  expect_error(ErrorKind::corrupt, {}, [&] { parse_tier_manifest(sealed(none), "m"); });
}

TEST(TierManifest, SaysWhichShardItIs) {
  TierManifest manifest = example();
  manifest.version = 4;
  manifest.shard = {2, 3, manifest.commit - 1};
  for (const bool counts_steps : {false, true}) {
    if (counts_steps) manifest.tensor_steps = {7, 0};
    std::vector<std::byte> bytes = serialise(manifest);
    EXPECT_EQ(parse_tier_manifest(bytes, "m"), manifest);
    const size_t at = 56 + (manifest.info.size() + 7) / 8 * 8 + 8 + manifest.tensor_steps.size() * 8;
    ASSERT_EQ(bytes[at], std::byte{2});
    bytes[at] = std::byte{3};
    expect_error(ErrorKind::corrupt, {"shard 3 of 3"}, [&] { parse_tier_manifest(sealed(bytes), "m"); });
    bytes[at] = std::byte{0}, bytes[at + 4] = std::byte{1};
    expect_error(ErrorKind::corrupt, {"the only one"}, [&] { parse_tier_manifest(sealed(bytes), "m"); });
  }
}

TEST(TierManifest, SaysThatANewerFormatIsNewer) {
  std::vector<std::byte> bytes = serialise(example());
  bytes[8] = std::byte{5};
  expect_error(ErrorKind::config, {"format version 5", "knows 4"},
               [&] { parse_tier_manifest(sealed(bytes), "m"); });
}

TEST(TierManifestDeathTest, IsNotWrittenWhenItCouldNotBeRead) {
  TierManifest manifest = example();
  manifest.stores[0].blocks[2] = manifest.stores[0].blocks[0];
  EXPECT_DEATH(serialise(manifest), "two blocks of store \"records\" are in slot 2 of path 0");
  manifest = example();
  manifest.stores[0].blocks[1].slot = 4;
  EXPECT_DEATH(serialise(manifest), "slot 4 of path 1, which does not exist");
  manifest = example();
  manifest.stores[0].blocks[1].path = 2;
  EXPECT_DEATH(serialise(manifest), "of path 2, which does not exist");
  manifest = example();
  manifest.stores[0].blocks.pop_back();
  EXPECT_DEATH(serialise(manifest), "lists 3 blocks and its chunks have 4");
  manifest = example();
  manifest.stores[1].name = "records";
  EXPECT_DEATH(serialise(manifest), "two stores are called \"records\"");
  manifest = example();
  manifest.stores[1].slot_counts = {2};
  EXPECT_DEATH(serialise(manifest), "differ in the number of paths");
  manifest = example();
  manifest.commit = 0;
  EXPECT_DEATH(serialise(manifest), "commits are numbered from 1");
}

TEST(TierLabel, GivesBackWhatWasWrittenAndFindsEveryFlippedByte) {
  tier::Label label{.space = {}, .path_index = 1, .path_count = 3};
  label.space.bytes[15] = std::byte{0xab};
  const auto bytes = tier::serialise(label);
  const tier::Label read = tier::parse_label(bytes, "space");
  EXPECT_EQ(read.space, label.space);
  EXPECT_EQ(read.path_index, 1u);
  EXPECT_EQ(read.path_count, 3u);
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto flipped = bytes;
    flipped[at] ^= std::byte{1};
    SCOPED_TRACE(at);
    expect_error(ErrorKind::corrupt, {"space"}, [&] { tier::parse_label(flipped, "space"); });
  }
}

TEST(TierNames, AreReadOnlyAsTheyAreWritten) {
  EXPECT_EQ(tier::commit_file_name({.commit = 12}), "commit-0000000000000012.manifest");
  EXPECT_EQ(tier::commit_file_name({.commit = 9999999999999999, .retained = true}),
            "commit-9999999999999999.retained");
  for (const std::string prefix : {"commit-", "epoch-"}) {
    const auto parsed = tier::parse_commit_file_name(prefix + "0000000000000012.retained");
    ASSERT_TRUE(parsed) << prefix;
    EXPECT_EQ(parsed->commit, 12u);
    EXPECT_TRUE(parsed->retained);
    EXPECT_FALSE(tier::parse_commit_file_name(prefix + "0000000000000012.manifest")->retained);
    for (const char* rest :
         {"12.manifest", "000000000000001x.manifest", "0000000000000012", "", "0000000000000012.manifest.new",
          "0000000000000000.manifest", "-000000000000012.manifest"})
      EXPECT_FALSE(tier::parse_commit_file_name(prefix + rest)) << prefix << rest;
  }
  for (const char* name : {"Commit-0000000000000012.manifest", "Epoch-0000000000000012.manifest",
                           "commits-0000000000000012.manifest", "commit-epoch-0000000000000012.manifest"})
    EXPECT_FALSE(tier::parse_commit_file_name(name)) << name;
}

}  // namespace
}  // namespace terrace::tier_manifest_test
