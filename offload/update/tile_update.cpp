#include <terrace/offload/update/tile_update.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/optimizer_cpu/moment_codes.h>

namespace terrace {
namespace {

constexpr uint64_t kWidestTileBytes = kTileElements * sizeof(float);

}  // namespace

TileUpdate::TileUpdate(const ChunkShards& shards, GradientSource& gradients, ParamHome& home,
                       const RecordLayout& layout, uint32_t parameter_bits, InstructionSet instruction_set,
                       DeviceArithmetic* device_arithmetic, bool dry)
    : shards_(shards),
      space_(shards.space()),
      gradients_(gradients),
      home_(home),
      layout_(layout),
      parameter_bits_(parameter_bits),
      instruction_set_(instruction_set),
      device_arithmetic_(device_arithmetic),
      dry_(dry) {}

// Returns true if the new parameters lie in the bytes of a gradient of a wider type.
bool TileUpdate::spreads(ChunkId chunk) const {
  return home_.host_slot(chunk) == nullptr && gradients_.type(chunk) != space_.section_of(chunk).type;
}

TileUpdate::Parts TileUpdate::parts_at(ChunkId chunk, uint64_t first_tile, std::byte* records,
                                       std::byte* output) const {
  return {records, gradients_of(chunk, first_tile), old_parameters_of(chunk, first_tile), output};
}

const std::byte* TileUpdate::gradients_of(ChunkId chunk, uint64_t first_tile) const {
  return gradients_.gradient(chunk) + first_tile * gradient_tile_bytes(chunk);
}

std::byte* TileUpdate::output_of(ChunkId chunk, uint64_t first_tile) const {
  const uint64_t parameter_bytes = parameter_tile_bytes(chunk);
  if (std::byte* const slot = home_.host_slot(chunk)) return slot + first_tile * parameter_bytes;
  const uint64_t gradient_bytes = gradient_tile_bytes(chunk);
  TERRACE_ASSERT(parameter_bytes <= gradient_bytes, "no gradient is narrower than its parameters");
  return gradients_.gradient(chunk) + first_tile * gradient_bytes;
}

const std::byte* TileUpdate::old_parameters_of(ChunkId chunk, uint64_t first_tile) const {
  if (layout_.master == MasterForm::whole) return nullptr;
  return home_.old().parameters(chunk) + first_tile * kTileElements * sizeof(Bf16);
}

void TileUpdate::update(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const {
  if (dry_) return;
  if (home_.callers().have(chunk)) return update_callers(chunk, first_tile, tile_count, records);
  if (!spreads(chunk)) {
    return run(chunk, first_tile, tile_count,
               parts_at(chunk, first_tile, records, output_of(chunk, first_tile)));
  }
  const uint64_t parameter_bytes = parameter_tile_bytes(chunk);
  alignas(64) std::byte fresh[kWidestTileBytes];
  for (uint64_t t = first_tile; t < first_tile + tile_count; ++t) {
    run(chunk, t, 1, parts_at(chunk, t, records + (t - first_tile) * layout_.tile_bytes(), fresh));
    std::memcpy(output_of(chunk, t), fresh, parameter_bytes);
  }
}

// A tile that lies in one tensor is updated where the program has it. One of several tensors is put together
// in memory of the thread.
void TileUpdate::update_callers(ChunkId chunk, uint64_t first_tile, uint64_t tile_count,
                                std::byte* records) const {
  const TensorMemory& tensors = home_.callers().memory();
  alignas(64) std::byte joined[kWidestTileBytes];
  alignas(64) std::byte joined_gradient[kWidestTileBytes];
  for (uint64_t t = first_tile; t < first_tile + tile_count; ++t) {
    const uint64_t first = (shards_.own(chunk).first_tile + t) * kTileElements;
    std::byte* const in_place = tensors.find(chunk, first, kTileElements);
    std::byte* const parameters = in_place != nullptr ? in_place : joined;
    if (in_place == nullptr && layout_.master == MasterForm::parameter)
      tensors.gather(chunk, first, kTileElements, joined);
    run(chunk, t, 1,
        {records + (t - first_tile) * layout_.tile_bytes(), gradients_.tile(chunk, t, joined_gradient),
         parameters, parameters});
    if (in_place == nullptr) tensors.scatter(chunk, first, kTileElements, joined);
  }
}

// Runs move in ascending order, so each one moves down over bytes that have moved already.
std::byte* TileUpdate::complete(ChunkId chunk, uint64_t run_tiles) const {
  std::byte* const begin = output_of(chunk, 0);
  if (!spreads(chunk) || dry_) return begin;
  const uint64_t parameter_bytes = parameter_tile_bytes(chunk);
  const uint64_t tiles = shards_.own(chunk).tile_count;
  for (uint64_t t = run_tiles; t < tiles; t += run_tiles) {
    std::memmove(begin + t * parameter_bytes, output_of(chunk, t),
                 std::min(run_tiles, tiles - t) * parameter_bytes);
  }
  return begin;
}

void TileUpdate::update_into(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                             std::byte* parameters) const {
  if (dry_) return;
  update_there(
      chunk, first_tile, tile_count,
      {records, gradients_of(chunk, first_tile), parameters + first_tile * parameter_tile_bytes(chunk)});
}

void TileUpdate::update_there(ChunkId chunk, uint64_t first_tile, uint64_t tile_count,
                              const TilePlaces& places) const {
  if (dry_) return;
  run(chunk, first_tile, tile_count, {places.records, places.gradients, places.parameters, places.parameters},
      device_arithmetic_);
}

void TileUpdate::look(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const {
  if (dry_) return;
  alignas(64) std::byte joined[kWidestTileBytes];
  for (uint64_t t = first_tile; t < first_tile + tile_count; ++t) {
    TileRun tile =
        run_of(chunk, records + (t - first_tile) * layout_.tile_bytes(), gradients_.tile(chunk, t, joined));
    const uint64_t begin = t * kTileElements, end = begin + kTileElements;
    for_each_run(chunk, [&](const OptimizerStep& step, const Elements& alike) {
      const uint64_t first = std::max(begin, alike.first), last = std::min(end, alike.end);
      if (first >= last || step.kind != OptimizerKind::muon) return;
      tile.rounding_place = alike.rounding_place + begin;
      constants_.matrices->look(step, tile, t, {alike.tensor, chunk, first, last});
    });
  }
}

TileRun TileUpdate::run_of(ChunkId chunk, std::byte* records, const std::byte* gradients) const {
  TileRun tiles;
  tiles.layout = layout_;
  tiles.record = records;
  tiles.gradient_type = gradients_.type(chunk);
  tiles.gradients = gradients;
  return tiles;
}

void TileUpdate::run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, const Parts& parts,
                     DeviceArithmetic* device) const {
  const uint64_t begin = first_tile * kTileElements;
  const uint64_t end = begin + tile_count * kTileElements;
  TileRun tiles = run_of(chunk, parts.records, parts.gradients);
  tiles.parameter_type = space_.section_of(chunk).type;
  tiles.parameters = parts.output;
  tiles.parameter_bits = bits_of(space_.section_of(chunk), parameter_bits_);
  if (layout_.master != MasterForm::whole) tiles.old_parameters = parts.old;
  for_each_run(chunk, [&](const OptimizerStep& step, const Elements& alike) {
    const uint64_t first = std::max(begin, alike.first), last = std::min(end, alike.end);
    if (first >= last) return;
    tiles.rounding_place = alike.rounding_place + begin;
    tiles.first_element = first - begin;
    tiles.element_count = last - first;
    if (step.kind == OptimizerKind::muon) {
      constants_.matrices->update(step, tiles, first_tile, {alike.tensor, chunk, first, last});
    } else if (device != nullptr) {
      device->update_tiles(step, tiles);
    } else {
      update_tiles(instruction_set_, step, tiles);
    }
  });
}

void TileUpdate::for_each_run(ChunkId chunk,
                              FunctionRef<void(const OptimizerStep&, const Elements&)> body) const {
  if (constants_.tensors.empty() && !layout_.has_codes()) {
    for (const Segment& segment : shards_.segments_of(chunk))
      body(constants_.groups[segment.group],
           {segment.first_element, segment.first_element + segment.elements, 0, TensorId{}});
    return;
  }
  uint64_t first = 0;
  const std::span<const TensorId> tensors = space_.tensors_of(chunk);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t end = shards_.end_of_part(chunk, i);
    if (end > first) {
      const FlatSpace::Part part = space_.part_of(tensors[i], chunk);
      const uint64_t in_tensor =
          part.first_in_tensor + shards_.own(chunk).first_element() - part.first_in_chunk;
      const uint64_t given = space_.tensor(tensors[i]).rounding_place;
      const uint64_t place = given > 0 ? given : kernels::rounding_place_of(index_of(tensors[i]), 0);
      const OptimizerStep& step = constants_.tensors.empty()
                                      ? constants_.groups[space_.tensor(tensors[i]).group]
                                      : constants_.tensors[index_of(tensors[i])];
      body(step, {first, end, place + in_tensor, tensors[i]});
    }
    first = end;
  }
}

}  // namespace terrace
