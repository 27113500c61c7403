// TierManifest: the contents of a commit: for every block of every store, the path and slot that hold it and
// its checksum; and information of the caller's. docs/nvme_format.md describes the file byte by byte. A
// reader must never trust a number in it before the checksum at its end and every limit are checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/record_layout.h>

namespace terrace {

// The id of one set of tier folders, drawn at random by the run that makes them.
struct SpaceId {
  std::array<std::byte, 16> bytes{};
  bool operator==(const SpaceId&) const = default;
};
// 32 hexadecimal digits.
std::string text_of(const SpaceId& id);

inline constexpr uint32_t kNoPath = std::numeric_limits<uint32_t>::max();

// The place of a block and the xxh3 (64 bits) of its bytes. kNoPath: it was never written, and the rest is 0.
struct StoredBlock {
  uint32_t path = kNoPath;
  uint32_t slot = 0;
  uint64_t checksum = 0;
  bool operator==(const StoredBlock&) const = default;
};

// A store in one commit.
struct StoreLayout {
  std::string name;
  uint64_t block_bytes = 0;           // bytes of a slot
  std::vector<uint64_t> chunk_bytes;  // by ChunkId; 0: not in this store
  std::vector<uint32_t> slot_counts;  // by path of the space; 0: no file there
  std::vector<StoredBlock> blocks;    // chunk by chunk, divide_up(chunk_bytes, block_bytes) each
  bool operator==(const StoreLayout&) const = default;
};

// The part of a state that several ranks keep together. A commit of all of them is whole where each of the
// `count` shards has one of the same number.
struct StateShard {
  uint32_t number = 0;
  uint32_t count = 1;
  uint64_t agreed = 0;  // the last commit that all shards were known to have; 0: none yet
  bool operator==(const StateShard&) const = default;
};

struct TierManifest {
  SpaceId space;        // of several ranks, the same for all shards
  uint64_t commit = 0;  // counts from 1
  std::string info;     // opaque bytes of the committer's
  std::vector<StoreLayout> stores;
  RecordLayout layout = {};  // layout of the optimizer state
  // Version of the format: 1 has only the default layout, 3 has tensor_steps, 4 a shard of several.
  uint32_t version = 2;
  // By tensor: how many updates it has had; empty where all have had the same number.
  std::vector<uint64_t> tensor_steps = {};
  StateShard shard = {};
  bool operator==(const TierManifest&) const = default;
};

// The limits of a manifest; more is refused when it is read, and is an assertion when it is written.
inline constexpr uint64_t kLargestTierBlockBytes = uint64_t{1} << 30;
inline constexpr uint64_t kLargestManifestBytes = uint64_t{1} << 34;

std::vector<std::byte> serialise(const TierManifest& manifest);
// Accepts only bytes that serialise() writes. Throws Error(corrupt), or Error(config) for a format that is
// newer than this program; `name` is the file's, for the message.
TierManifest parse_tier_manifest(std::span<const std::byte> bytes, const std::filesystem::path& name);

}  // namespace terrace
