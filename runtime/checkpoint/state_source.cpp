#include <terrace/runtime/checkpoint/state_source.h>

#include <algorithm>
#include <vector>

#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace {
namespace {

// In blocks of the checkpoint, from the offset that `read` is given.
template <typename Read>
void read_in_blocks(uint64_t bytes, StateSource::Sink sink, Read read) {
  std::vector<std::byte> block(std::min(bytes, checkpoint::kBlockBytes));
  for (uint64_t offset = 0; offset < bytes; offset += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), bytes - offset));
    read(offset, part);
    sink(part);
  }
}

}  // namespace

void EpochSource::read_states(Sink sink) {
  read_in_blocks(states_bytes(), sink, [&](uint64_t offset, std::span<std::byte> part) {
    epoch_->read_records(offset / RecordLayout{}.tile_bytes(), part);
  });
}

void EpochSource::read_frozen(Sink sink) {
  read_in_blocks(frozen_bytes(), sink,
                 [&](uint64_t offset, std::span<std::byte> part) { epoch_->read_frozen(offset, part); });
}

}  // namespace terrace
