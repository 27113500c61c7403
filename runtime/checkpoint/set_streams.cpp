#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/runtime/checkpoint/internal/set_streams.h>

namespace terrace {

SetStreams::SetStreams(std::span<const ShardPaths> shards, uint64_t commit, std::string_view what)
    : shards_(shards), what_(what) {
  for (const ShardPaths& paths : shards_) {
    FoundTier found = look_at_tier(paths, commit);
    if (!found.whole || found.commit != commit)
      throw Error(ErrorKind::corrupt,
                  {std::string(what_), paths.front().string(), found.trouble, "resume from a checkpoint"});
    manifests_.push_back(std::move(found.newest));
  }
}

SetStreams::Store::Store(const SetStreams& set, std::string_view name) : what_(set.what_) {
  size_t chunks = 0;
  for (size_t s = 0; s < set.manifests_.size(); ++s) {
    const auto& stores = set.manifests_[s].stores;
    const auto store = std::ranges::find(stores, name, &StoreLayout::name);
    if (store == stores.end()) return;  // no shard has it
    readers_.emplace_back(set.shards_[s], *store);
    chunks = std::max(chunks, store->chunk_bytes.size());
    buffer_.resize(std::max<size_t>(buffer_.size(), store->block_bytes));
  }
  std::vector<size_t> next(readers_.size(), 0);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    for (uint32_t s = 0; s < readers_.size(); ++s) {
      for (; next[s] < readers_[s].block_count(); ++next[s]) {
        const TierBlockReader::Block block = readers_[s].block(next[s]);
        if (block.chunk != chunk) break;
        blocks_.push_back({s, next[s], bytes_, block.bytes});
        bytes_ += block.bytes;
      }
    }
  }
}

void SetStreams::Store::read(std::span<std::byte> destination) {
  while (!destination.empty()) {
    while (at_ >= blocks_[block_].begin + blocks_[block_].bytes) ++block_;
    const Piece& piece = blocks_[block_];
    if (held_ != block_) take(piece);
    const uint64_t begin = at_ - piece.begin;
    const uint64_t count = std::min<uint64_t>(piece.bytes - begin, destination.size());
    std::memcpy(destination.data(), buffer_.data() + begin, count);
    destination = destination.subspan(count);
    at_ += count;
  }
}

void SetStreams::Store::take(const Piece& piece) {
  held_.reset();
  const TierBlockReader& reader = readers_[piece.shard];
  const Reason trouble = reader.read(piece.index, std::span(buffer_).first(piece.bytes));
  if (!trouble.text.empty()) {
    const TierBlockReader::Block block = reader.block(piece.index);
    throw Error(
        trouble.error_number != 0 ? ErrorKind::io : ErrorKind::corrupt,
        {std::string(what_), block.file.string(),
         fmt::format("the block at offset {}: ", block.offset) + trouble, "resume from a checkpoint"});
  }
  held_ = block_;
}

SetStreams::States::States(const SetStreams& set)
    : layout_(set.layout()),
      records_(set, "records"),
      parameters_(set, layout_.master == MasterForm::remainder ? "params" : "") {}

uint64_t SetStreams::States::bytes() const {
  return records_.bytes() / layout_.tile_bytes() * layout_.canonical().tile_bytes();
}

void SetStreams::States::read(std::span<std::byte> tiles) {
  if (layout_.is_canonical()) return records_.read(tiles);
  const uint64_t tile_bytes = layout_.canonical().tile_bytes();
  for (; !tiles.empty(); tiles = tiles.subspan(tile_bytes)) {
    record_.resize(layout_.tile_bytes());
    parameter_.resize(kTileElements * sizeof(Bf16));
    records_.read(record_);
    if (layout_.master == MasterForm::remainder) parameters_.read(parameter_);
    join_tiles(best_instruction_set(), layout_, record_.data(), parameter_.data(), tiles.data(), 1);
  }
}

void SetStreams::States::skip(uint64_t bytes) {
  const uint64_t tiles = bytes / layout_.canonical().tile_bytes();
  records_.skip(tiles * layout_.tile_bytes());
  if (layout_.master == MasterForm::remainder) parameters_.skip(tiles * kTileElements * sizeof(Bf16));
}

}  // namespace terrace
