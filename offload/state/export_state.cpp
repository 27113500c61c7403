// The part of TrainingState that hands the state out and reads each block of it once.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include <terrace/base/error.h>
#include <terrace/memory/space/tensor_runs.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

uint64_t TrainingState::record_tile_count() const {
  uint64_t tiles = 0;
  for (const Section& section : blocks_.run().space.sections())
    tiles += section.trainable ? section.elements / kTileElements : 0;
  return tiles;
}

uint64_t TrainingState::frozen_bytes() const {
  uint64_t bytes = 0;
  for (const Section& section : blocks_.run().space.sections())
    bytes += section.trainable ? 0 : section.elements * bytes_of(section.type);
  return bytes;
}

void TrainingState::export_records(FunctionRef<void(std::span<const std::byte>)> sink) {
  static_cast<void>(boundary_.whole("cannot export the optimizer states of"));
  const RunContext& run = blocks_.run();
  run.watch.set_activity("saving the state");
  const RingBlock bounce(blocks_.ring());
  const uint64_t tile_bytes = run.plan.record_layout.tile_bytes();
  const uint64_t block_tiles = bounce.memory().size() / tile_bytes;
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    const uint64_t tiles = run.is_trained(chunk) ? run.space.chunk(chunk).tile_count() : 0;
    const std::byte* const parameters =
        tiles > 0 && run.is_compact() ? blocks_.parameters_of(chunk) : nullptr;
    for (uint64_t first = 0; first < tiles; first += block_tiles) {
      const std::span<std::byte> block =
          bounce.memory().first(std::min(block_tiles, tiles - first) * tile_bytes);
      blocks_.homes().records.read(chunk, first, block);
      if (!run.is_compact()) {
        sink(block);
      } else {
        blocks_.join_each(block, parameters + first * blocks_.parameter_tile_bytes(chunk),
                          [&](uint64_t, std::span<const std::byte> canonical) { sink(canonical); });
      }
    }
  }
}

void TrainingState::export_frozen(FunctionRef<void(std::span<const std::byte>)> sink) {
  static_cast<void>(boundary_.whole("cannot export the frozen parameters of"));
  const FlatSpace& space = blocks_.run().space;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable) continue;
    sink({blocks_.parameters_of(ChunkId{c}), space.param_bytes(ChunkId{c})});
  }
}

// --- The values of chosen tensors ---

bool TrainingState::is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count, Wanted wanted) const {
  bool any = false;
  for_each_tensor_in(blocks_.run().space, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t, uint64_t, uint64_t) { any = any || wanted(tensor); });
  return any;
}

void TrainingState::export_masters(ChunkId chunk, std::span<std::byte> bounce, Wanted wanted,
                                   ValueSink sink) {
  const RunContext& run = blocks_.run();
  const uint64_t tile_bytes = run.plan.record_layout.tile_bytes();
  const uint64_t block_tiles = bounce.size() / tile_bytes;
  const uint64_t tiles = run.space.chunk(chunk).tile_count();
  const std::byte* parameters = nullptr;
  for (uint64_t first = 0; first < tiles; first += block_tiles) {
    const uint64_t count = std::min(block_tiles, tiles - first);
    if (!is_wanted(chunk, first * kTileElements, count * kTileElements, wanted)) continue;
    if (parameters == nullptr && run.is_compact()) parameters = blocks_.parameters_of(chunk);
    blocks_.homes().records.read(chunk, first, bounce.first(count * tile_bytes));
    const auto export_tile = [&](uint64_t t, std::span<const std::byte> tile) {
      const auto* master = reinterpret_cast<const float*>(tile.data());
      for_each_tensor_in(run.space, chunk, (first + t) * kTileElements, kTileElements,
                         [&](TensorId tensor, uint64_t element, uint64_t at, uint64_t elements) {
                           if (wanted(tensor)) sink(tensor, element, {master + at, elements});
                         });
    };
    if (run.is_compact()) {
      blocks_.join_each(bounce.first(count * tile_bytes),
                        parameters + first * blocks_.parameter_tile_bytes(chunk), export_tile);
    } else {
      for (uint64_t t = 0; t < count; ++t) export_tile(t, bounce.subspan(t * tile_bytes, tile_bytes));
    }
  }
}

void TrainingState::export_frozen_values(ChunkId chunk, Wanted wanted, ValueSink sink) {
  const RunContext& run = blocks_.run();
  if (!is_wanted(chunk, 0, run.space.chunk(chunk).elements, wanted)) return;
  const std::byte* const parameters = blocks_.parameters_of(chunk);
  std::array<float, kTileElements> values;
  for (uint64_t t = 0; t < run.space.chunk(chunk).tile_count(); ++t) {
    convert_to_float(run.instruction_set, parameters + t * blocks_.parameter_tile_bytes(chunk),
                     run.space.section_of(chunk).type, values.data(), values.size());
    for_each_tensor_in(run.space, chunk, t * kTileElements, kTileElements,
                       [&](TensorId tensor, uint64_t element, uint64_t at, uint64_t elements) {
                         if (wanted(tensor)) sink(tensor, element, {values.data() + at, elements});
                       });
  }
}

void TrainingState::export_values(Wanted wanted, ValueSink sink) {
  static_cast<void>(boundary_.whole("cannot export the weights of"));
  const RunContext& run = blocks_.run();
  std::optional<RingBlock> bounce;
  if (record_tile_count() > 0) bounce.emplace(blocks_.ring());
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    if (run.is_trained(ChunkId{c})) {
      export_masters(ChunkId{c}, bounce->memory(), wanted, sink);
    } else {
      export_frozen_values(ChunkId{c}, wanted, sink);
    }
  }
}

void TrainingState::read_parameter(TensorId tensor, std::span<std::byte> destination) {
  static_cast<void>(boundary_.whole("cannot read a parameter of"));
  const FlatSpace& space = blocks_.run().space;
  const TensorPlace& place = space.place(tensor);
  const uint64_t element_bytes = bytes_of(space.tensor(tensor).type);
  if (destination.size() < place.elements * element_bytes)
    throw Error(ErrorKind::misuse, {"cannot read the parameter", space.tensor(tensor).name,
                                    fmt::format("it has {} bytes, and there is room for {}",
                                                place.elements * element_bytes, destination.size()),
                                    "give it room for all of its elements, in its own precision"});
  for (uint32_t c = place.first_chunk; c < place.first_chunk + place.chunk_count; ++c) {
    const std::byte* const parameters = blocks_.parameters_of(ChunkId{c});
    for_each_tensor_in(space, ChunkId{c}, 0, space.chunk(ChunkId{c}).elements,
                       [&](TensorId found, uint64_t first, uint64_t at, uint64_t count) {
                         if (found != tensor) return;
                         std::memcpy(destination.data() + first * element_bytes,
                                     parameters + at * element_bytes, count * element_bytes);
                       });
  }
}

}  // namespace terrace
