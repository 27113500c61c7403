#include <terrace/runtime/checkpoint/state_source.h>

#include <algorithm>
#include <vector>

#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace {
void read_in_blocks(uint64_t bytes, uint64_t block_bytes, StateSource::Sink sink,
                    FunctionRef<void(uint64_t offset, std::span<std::byte> block)> read) {
  std::vector<std::byte> block(std::min(bytes, block_bytes));
  for (uint64_t offset = 0; offset < bytes; offset += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), bytes - offset));
    read(offset, part);
    sink(part);
  }
}

// As many tiles at a time as a block of the tier has: none is read twice.
void CommitSource::read_states(Sink sink) {
  const RecordLayout tiles = layout();
  read_in_blocks(states_bytes(), commit_->block_tiles() * tiles.tile_bytes(), sink,
                 [&](uint64_t offset, std::span<std::byte> part) {
                   commit_->read_records(offset / tiles.tile_bytes(), part);
                 });
}

void CommitSource::read_frozen(Sink sink) {
  read_in_blocks(frozen_bytes(), checkpoint::kBlockBytes, sink,
                 [&](uint64_t offset, std::span<std::byte> part) { commit_->read_frozen(offset, part); });
}

}  // namespace terrace
