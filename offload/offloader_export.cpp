// The values of chosen tensors out of an Offloader, for weight files: streamed, each block read once.
#include <terrace/offload/offloader_parts.h>

#include <algorithm>
#include <array>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

// Calls body(tensor, first_element_in_tensor, first_element_in_run, count) for each wanted tensor within a
// run of elements of a chunk.
template <typename Body>
void for_each_wanted(const FlatSpace& space, ChunkId chunk, uint64_t first_element, uint64_t count,
                     FunctionRef<bool(TensorId)> wanted, Body body) {
  const uint64_t begin = space.chunk(chunk).first_element + first_element;  // in the section
  for (const TensorId tensor : space.tensors_of(chunk)) {
    const TensorPlace& place = space.place(tensor);
    const uint64_t first = std::max(begin, place.first_element);
    const uint64_t last = std::min(begin + count, place.first_element + place.elements);
    if (first < last && wanted(tensor))
      body(tensor, first - place.first_element, first - begin, last - first);
  }
}

}  // namespace

bool Offloader::Parts::is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count,
                                 FunctionRef<bool(TensorId)> wanted) const {
  bool any = false;
  for_each_wanted(space, chunk, first_element, count, wanted,
                  [&](TensorId, uint64_t, uint64_t, uint64_t) { any = true; });
  return any;
}

void Offloader::Parts::export_masters(ChunkId chunk, std::span<std::byte> bounce,
                                      FunctionRef<bool(TensorId)> wanted,
                                      FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
  const uint64_t tile_bytes = plan.record_layout.tile_bytes();
  const uint64_t block_tiles = bounce.size() / tile_bytes;
  const uint64_t tiles = space.chunk(chunk).tile_count();
  const std::byte* parameters = nullptr;
  for (uint64_t first = 0; first < tiles; first += block_tiles) {
    const uint64_t count = std::min(block_tiles, tiles - first);
    if (!is_wanted(chunk, first * kTileElements, count * kTileElements, wanted)) continue;
    if (parameters == nullptr && is_compact()) parameters = parameters_of(chunk);
    records->read(chunk, first, bounce.first(count * tile_bytes));
    const auto export_tile = [&](uint64_t t, std::span<const std::byte> tile) {
      const auto* master = reinterpret_cast<const float*>(tile.data());
      for_each_wanted(space, chunk, (first + t) * kTileElements, kTileElements, wanted,
                      [&](TensorId tensor, uint64_t element, uint64_t at, uint64_t elements) {
                        sink(tensor, element, {master + at, elements});
                      });
    };
    if (is_compact()) {
      join_each(bounce.first(count * tile_bytes), parameters + first * kTileElements * sizeof(Bf16),
                export_tile);
    } else {
      for (uint64_t t = 0; t < count; ++t) export_tile(t, bounce.subspan(t * tile_bytes, tile_bytes));
    }
  }
}

void Offloader::Parts::export_frozen_values(
    ChunkId chunk, FunctionRef<bool(TensorId)> wanted,
    FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
  if (!is_wanted(chunk, 0, space.chunk(chunk).elements, wanted)) return;
  const DataType type = space.section_of(chunk).type;
  const std::byte* const parameters = parameters_of(chunk);
  std::array<float, kTileElements> values;
  for (uint64_t t = 0; t < space.chunk(chunk).tile_count(); ++t) {
    convert_to_float(instruction_set, parameters + t * kTileElements * bytes_of(type), type, values.data(),
                     values.size());
    for_each_wanted(space, chunk, t * kTileElements, kTileElements, wanted,
                    [&](TensorId tensor, uint64_t element, uint64_t at, uint64_t elements) {
                      sink(tensor, element, {values.data() + at, elements});
                    });
  }
}

void Offloader::export_values(FunctionRef<bool(TensorId)> wanted,
                              FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
  Parts& p = *parts_;
  static_cast<void>(p.finished_state("cannot export the weights of"));
  const std::span<std::byte> bounce = record_tile_count() > 0 ? p.ring.acquire() : std::span<std::byte>{};
  try {
    for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
      if (p.space.section_of(ChunkId{c}).trainable) {
        p.export_masters(ChunkId{c}, bounce, wanted, sink);
      } else {
        p.export_frozen_values(ChunkId{c}, wanted, sink);
      }
    }
  } catch (...) {
    if (!bounce.empty()) p.ring.release(bounce);
    throw;
  }
  if (!bounce.empty()) p.ring.release(bounce);
}

}  // namespace terrace
