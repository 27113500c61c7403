// SetStreams: one commit of a set of shards as a checkpoint has it: all states with whole masters, and all
// frozen parameters, in flat order. Every byte is verified. One thread at a time uses it; the commit stays as
// it is meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/record_layout.h>
#include <terrace/memory/tier/tier_block_reader.h>
#include <terrace/memory/tier/tier_manifest.h>
#include <terrace/offload/tiers/common_tier.h>

namespace terrace {

class SetStreams {
 public:
  // Throws Error(corrupt) where a shard does not have the commit, and where a byte of it is not as it was
  // committed; `what` begins its message.
  SetStreams(std::span<const ShardPaths> shards, uint64_t commit, std::string_view what);

  // The blocks of one store of all shards, byte by byte from the first on.
  class Store {
   public:
    Store(const SetStreams& set, std::string_view name);
    uint64_t bytes() const { return bytes_; }
    // Reads on from where the last call ended.
    void read(std::span<std::byte> destination);
    void skip(uint64_t bytes) { at_ += bytes; }

   private:
    struct Piece {
      uint32_t shard;
      size_t index;  // of the block in the shard's store
      uint64_t begin, bytes;
    };
    void take(const Piece& piece);

    const std::string_view what_;
    std::vector<TierBlockReader> readers_;  // by shard
    std::vector<Piece> blocks_;
    std::vector<std::byte> buffer_;
    std::optional<size_t> held_;  // the block in buffer_
    uint64_t bytes_ = 0, at_ = 0;
    size_t block_ = 0;  // the one with byte at_, or one before
  };

  // Canonical tiles.
  class States {
   public:
    explicit States(const SetStreams& set);
    uint64_t bytes() const;
    void read(std::span<std::byte> tiles);
    void skip(uint64_t bytes);

   private:
    const RecordLayout layout_;
    Store records_;
    Store parameters_;
    std::vector<std::byte> record_, parameter_;  // one tile of each
  };

  const RecordLayout& layout() const { return manifests_.front().layout; }  // of the records
  const std::string& info() const { return manifests_.front().info; }
  std::span<const uint64_t> tensor_steps() const { return manifests_.front().tensor_steps; }
  // Both begin at their first byte, and this outlives them.
  States states() const { return States(*this); }
  Store frozen() const { return Store(*this, "frozen"); }

 private:
  const std::span<const ShardPaths> shards_;
  const std::string_view what_;
  std::vector<TierManifest> manifests_;  // by shard
};

}  // namespace terrace
