// TierBlockReader: the blocks of one store of a commit, read beside the job that made it or without any. It
// changes and locks nothing. One thread at a time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/memory/tier/tier_manifest.h>

namespace terrace {

class TierBlockReader {
 public:
  // `paths` are those of the space of the commit, in any order; `store` outlives this. Throws Error(io) when
  // a tier file cannot be opened.
  TierBlockReader(std::span<const std::filesystem::path> paths, const StoreLayout& store);

  struct Block {
    uint32_t chunk = 0;
    uint32_t number = 0;  // in the chunk
    uint64_t bytes = 0;
    std::filesystem::path file;  // empty: it was never written
    uint64_t offset = 0;         // in the file
  };
  // Counted from 0 chunk by chunk.
  size_t block_count() const { return blocks_.size(); }
  Block block(size_t index) const;
  // Fills `destination`, which is as long as the block, and returns why it is bad, with both checksums; empty
  // where it is as it was committed.
  Reason read(size_t index, std::span<std::byte> destination) const;

 private:
  struct Place {
    uint32_t chunk, number;
  };

  const StoreLayout& store_;
  std::vector<Place> blocks_;
  std::vector<std::optional<io::File>> files_;  // by path of the space
};

}  // namespace terrace
