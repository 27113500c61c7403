#include <terrace/offload/tile_update.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr uint64_t kWidestTileBytes = kTileElements * sizeof(float);

}  // namespace

TileUpdate::TileUpdate(const FlatSpace& space, GradientStore& gradients, ParamHome& home,
                       const RecordLayout& layout, InstructionSet instruction_set,
                       DeviceArithmetic* device_arithmetic, bool dry)
    : space_(space),
      gradients_(gradients),
      home_(home),
      layout_(layout),
      instruction_set_(instruction_set),
      device_arithmetic_(device_arithmetic),
      dry_(dry) {}

// Whether new parameters lie in the bytes of a gradient that is wider than they are.
bool TileUpdate::spreads(ChunkId chunk) const {
  return home_.host_slot(chunk) == nullptr && gradients_.type(chunk) != space_.section_of(chunk).type;
}

void TileUpdate::update(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const {
  if (dry_) return;
  if (!spreads(chunk)) {
    std::byte* const slot = home_.host_slot(chunk);
    std::byte* const output = slot != nullptr ? slot : gradients_.gradient(chunk);
    const uint64_t tile_bytes = kTileElements * bytes_of(space_.section_of(chunk).type);
    return run(chunk, first_tile, tile_count, records, output + first_tile * tile_bytes,
               old_parameters(chunk));
  }
  const uint64_t gradient_bytes = kTileElements * bytes_of(gradients_.type(chunk));
  const uint64_t parameter_bytes = kTileElements * bytes_of(space_.section_of(chunk).type);
  TERRACE_ASSERT(parameter_bytes <= gradient_bytes, "no gradient is narrower than its parameters");
  alignas(64) std::byte fresh[kWidestTileBytes];
  for (uint64_t t = 0; t < tile_count; ++t) {
    run(chunk, first_tile + t, 1, records + t * layout_.tile_bytes(), fresh, old_parameters(chunk));
    std::memcpy(gradients_.gradient(chunk) + (first_tile + t) * gradient_bytes, fresh, parameter_bytes);
  }
}

// Ascending: what a tile leaves for is behind it, and over what has left.
std::byte* TileUpdate::complete(ChunkId chunk) const {
  if (std::byte* const slot = home_.host_slot(chunk)) return slot;
  std::byte* const begin = gradients_.gradient(chunk);
  if (!spreads(chunk) || dry_) return begin;
  const uint64_t gradient_bytes = kTileElements * bytes_of(gradients_.type(chunk));
  const uint64_t parameter_bytes = kTileElements * bytes_of(space_.section_of(chunk).type);
  for (uint64_t t = 1; t < space_.chunk(chunk).tile_count(); ++t)
    std::memmove(begin + t * parameter_bytes, begin + t * gradient_bytes, parameter_bytes);
  return begin;
}

void TileUpdate::update_into(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                             std::byte* parameters) const {
  if (dry_) return;
  const uint64_t tile_bytes = kTileElements * bytes_of(space_.section_of(chunk).type);
  run(chunk, first_tile, tile_count, records, parameters + first_tile * tile_bytes, parameters,
      device_arithmetic_);
}

const std::byte* TileUpdate::old_parameters(ChunkId chunk) const {
  return layout_.master == MasterForm::remainder ? home_.old_parameters(chunk) : nullptr;
}

void TileUpdate::run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                     std::byte* output, const std::byte* old, DeviceArithmetic* device) const {
  const uint64_t begin = first_tile * kTileElements;
  const uint64_t end = begin + tile_count * kTileElements;
  TileRun tiles;
  tiles.layout = layout_;
  tiles.record = records;
  tiles.gradient_type = gradients_.type(chunk);
  tiles.gradients = gradients_.gradient(chunk) + begin * bytes_of(tiles.gradient_type);
  tiles.parameter_type = space_.section_of(chunk).type;
  tiles.parameters = output;
  if (layout_.master == MasterForm::remainder) tiles.old_parameters = old + begin * sizeof(Bf16);
  for (const Segment& segment : space_.segments_of(chunk)) {
    const uint64_t first = std::max(begin, segment.first_element);
    const uint64_t last = std::min(end, segment.first_element + segment.elements);
    if (first >= last) continue;
    tiles.first_element = first - begin;
    tiles.element_count = last - first;
    if (device != nullptr) {
      device->update_tiles(steps_[segment.group], tiles);
    } else {
      update_tiles(instruction_set_, steps_[segment.group], tiles);
    }
  }
}

}  // namespace terrace
