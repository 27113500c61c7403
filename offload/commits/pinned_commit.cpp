#include <terrace/offload/commits/pinned_commit.h>

#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/offload/commits/pinned_commit_reader.h>
#include <terrace/optimizer_cpu/masters.h>

namespace terrace {

PinnedCommit::Reader::Run::Run(BlockStore* store, const BlockStore::Snapshot& snapshot,
                               const FlatSpace& space, bool trainable)
    : store_(store), snapshot_(snapshot) {
  if (store == nullptr) return;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable != trainable) continue;
    chunks_.push_back({ChunkId{c}, bytes_});
    bytes_ += store->chunk_bytes(ChunkId{c});
  }
}

PinnedCommit::Reader::Reader(Committer& committer, const CommitStores& stores, const FlatSpace& space,
                             std::unique_ptr<io::Engine> engine, std::span<std::byte> memory,
                             uint64_t block_bytes, InstructionSet set)
    : committer_(committer),
      slots_(committer.pin()),
      engine_(std::move(engine)),
      records_(stores[CommitPart::records], slots_[CommitPart::records], space, true),
      frozen_(stores[CommitPart::frozen], slots_[CommitPart::frozen], space, false),
      parameters_(stores[CommitPart::parameters], slots_[CommitPart::parameters], space, true),
      layout_(stores.layout),
      instruction_set_(set) {
  if (!layout_.is_canonical()) {
    unjoined_records_ = memory.last(block_bytes);
    unjoined_parameters_ = memory.last(2 * block_bytes).first(block_bytes);
    memory = memory.first(memory.size() - 2 * block_bytes);
  }
  buffers_ = std::vector<Buffer>(memory.size() / block_bytes);
  for (size_t b = 0; b < buffers_.size(); ++b)
    buffers_[b].memory = memory.subspan(b * block_bytes, block_bytes);
}

PinnedCommit::Reader::~Reader() {
  engine_.reset();
  committer_.unpin();
}

void PinnedCommit::Reader::read(const Run& run, uint64_t begin, std::span<std::byte> destination) {
  TERRACE_ASSERT(begin <= run.bytes() && destination.size() <= run.bytes() - begin,
                 "bytes " + std::to_string(begin) + " + " + std::to_string(destination.size()) +
                     " are not in a commit of " + std::to_string(run.bytes()));
  // `chunk` is one after the last chunk that begins at or before `begin`.
  auto chunk = std::upper_bound(run.chunks_.begin(), run.chunks_.end(), begin,
                                [](uint64_t at, const Run::Piece& piece) { return at < piece.begin; });
  size_t turn = 0;
  try {
    while (!destination.empty()) {
      const Run::Piece& piece = *std::prev(chunk);
      const uint64_t block_bytes = run.store_->block_bytes(piece.chunk, 0);
      Buffer& buffer = buffers_[turn++ % buffers_.size()];
      finish(buffer);
      const auto block = static_cast<uint32_t>((begin - piece.begin) / block_bytes);
      buffer.skip = begin - piece.begin - block * block_bytes;
      const uint64_t bytes = run.store_->block_bytes(piece.chunk, block);
      buffer.destination = destination.first(std::min<uint64_t>(bytes - buffer.skip, destination.size()));
      buffer.read.start_read(*run.store_, run.snapshot_, piece.chunk, block, buffer.memory,
                             TransferPort(*engine_, io::Priority::background), {.what = "a commit"});
      begin += buffer.destination.size();
      destination = destination.subspan(buffer.destination.size());
      if (chunk != run.chunks_.end() && begin == chunk->begin) ++chunk;
    }
    for (Buffer& buffer : buffers_) finish(buffer);
  } catch (...) {
    while (engine_->in_flight() > 0) engine_->wait(1);
    // Every buffer's read is ended, whether it failed or not.
    for (Buffer& buffer : buffers_) {
      try {
        finish(buffer);
      } catch (const Error&) {
      }
    }
    throw;
  }
}

// Waits for the read into the buffer and copies the bytes to their destination.
void PinnedCommit::Reader::finish(Buffer& buffer) {
  const std::span<std::byte> destination = std::exchange(buffer.destination, {});
  buffer.read.finish();
  if (!destination.empty())
    std::memcpy(destination.data(), buffer.memory.data() + buffer.skip, destination.size());
}

PinnedCommit::Reader::Run::Extent PinnedCommit::Reader::Run::block_at(uint64_t byte) const {
  const auto next = std::upper_bound(chunks_.begin(), chunks_.end(), byte,
                                     [](uint64_t at, const Piece& piece) { return at < piece.begin; });
  const Piece& piece = *std::prev(next);
  const uint64_t block_bytes = store_->block_bytes(piece.chunk, 0);
  const auto block = static_cast<uint32_t>((byte - piece.begin) / block_bytes);
  return {piece.begin + block * block_bytes, store_->block_bytes(piece.chunk, block)};
}

const std::byte* PinnedCommit::Reader::parameters_of_tile(uint64_t tile) {
  const uint64_t byte = tile * kTileElements * sizeof(Bf16);
  if (byte < unjoined_extent_.begin || byte - unjoined_extent_.begin >= unjoined_extent_.bytes) {
    const Run::Extent extent = parameters_.block_at(byte);
    unjoined_extent_ = {};  // empty until the read has ended
    read(parameters_, extent.begin, unjoined_parameters_.first(extent.bytes));
    unjoined_extent_ = extent;
  }
  return unjoined_parameters_.data() + (byte - unjoined_extent_.begin);
}

void PinnedCommit::Reader::read_records(uint64_t first_tile, std::span<std::byte> tiles) {
  const uint64_t tile_bytes = layout_.tile_bytes();
  if (layout_.is_canonical()) return read(records_, first_tile * tile_bytes, tiles);
  const uint64_t canonical_bytes = layout_.canonical().tile_bytes();
  while (!tiles.empty()) {
    const uint64_t count = std::min(
        {tiles.size() / canonical_bytes, layout_.block_tiles(), unjoined_records_.size() / tile_bytes});
    read(records_, first_tile * tile_bytes, unjoined_records_.first(count * tile_bytes));
    for (uint64_t t = 0; t < count; ++t) {
      join_tiles(instruction_set_, layout_, unjoined_records_.data() + t * tile_bytes,
                 layout_.master == MasterForm::whole ? nullptr : parameters_of_tile(first_tile + t),
                 tiles.data() + t * canonical_bytes, 1);
    }
    first_tile += count;
    tiles = tiles.subspan(count * canonical_bytes);
  }
}

bool PinnedCommit::Reader::clone(const Run& run, int fd) {
  for (const Run::Piece& piece : run.chunks_) {
    const uint32_t count = run.store_->block_count(piece.chunk);
    for (uint32_t block = 0; block < count; ++block) {
      const BlockPlace from = run.store_->place(run.snapshot_, piece.chunk, block);
      file_clone_range range{};
      range.src_fd = from.fd;
      range.src_offset = from.offset;
      range.src_length = from.bytes;
      range.dest_offset = piece.begin + block * run.store_->block_bytes(piece.chunk, 0);
      if (ioctl(fd, FICLONERANGE, &range) != 0) return false;
    }
  }
  return true;
}

PinnedCommit::PinnedCommit(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
PinnedCommit::~PinnedCommit() = default;

uint64_t PinnedCommit::commit() const {
  return reader_->slots().commit;
}
const std::string& PinnedCommit::info() const {
  return reader_->slots().info;
}

std::span<const uint64_t> PinnedCommit::tensor_steps() const {
  return reader_->slots().tensor_steps;
}

RecordLayout PinnedCommit::record_layout() const {
  return reader_->layout().canonical();
}
uint64_t PinnedCommit::block_tiles() const {
  return reader_->layout().block_tiles();
}
uint64_t PinnedCommit::record_tile_count() const {
  return reader_->records().bytes() / reader_->layout().tile_bytes();
}
void PinnedCommit::read_records(uint64_t first_tile, std::span<std::byte> tiles) {
  reader_->read_records(first_tile, tiles);
}

uint64_t PinnedCommit::frozen_bytes() const {
  return reader_->frozen().bytes();
}
void PinnedCommit::read_frozen(uint64_t offset, std::span<std::byte> parameters) {
  reader_->read(reader_->frozen(), offset, parameters);
}

bool PinnedCommit::clone_records(int fd) {
  if (!reader_->layout().is_canonical()) return false;
  return reader_->clone(reader_->records(), fd);
}
bool PinnedCommit::clone_frozen(int fd) {
  return reader_->clone(reader_->frozen(), fd);
}

}  // namespace terrace
