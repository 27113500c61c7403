#include <terrace/offload/update/matrix_tiles.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

using TileOfFloats = std::array<float, kTileElements>;
static_assert(RecordLayout{MasterForm::parameter, 1, MomentType::fp32}.tile_bytes() <= sizeof(TileOfFloats) &&
              RecordLayout{MasterForm::parameter, 2, MomentType::int8}.tile_bytes() <= sizeof(TileOfFloats));

}  // namespace

void MatrixTiles::look(const OptimizerStep& momentum, const TileRun& tiles, uint64_t first_tile,
                       const MatrixElements& elements) const {
  if (steps_.group_of(elements.tensor) != group_) return;
  for_each_piece(tiles, first_tile, elements, [&](const Piece& piece) { look_at_piece(momentum, piece); });
}

void MatrixTiles::update(const OptimizerStep& momentum, const TileRun& tiles, uint64_t first_tile,
                         const MatrixElements& elements) const {
  const OptimizerStep& weights = weights_[index_of(elements.tensor)];
  for_each_piece(tiles, first_tile, elements,
                 [&](const Piece& piece) { update_piece(momentum, weights, piece); });
}

void MatrixTiles::for_each_piece(const TileRun& tiles, uint64_t first_tile, const MatrixElements& elements,
                                 FunctionRef<void(const Piece&)> body) const {
  const FlatSpace::Part part = shards_.space().part_of(elements.tensor, elements.chunk);
  const uint64_t own = shards_.own(elements.chunk).first_element();
  // Counted from the chunk's first own element, as `elements` are.
  const uint64_t part_begin = std::max(part.first_in_chunk, own) - own;
  const uint64_t part_end = std::max(part.first_in_chunk + part.elements, own) - own;
  Bf16* const steps = steps_.at(elements.tensor, elements.chunk);
  for (uint64_t first = elements.first; first < elements.end;) {
    const uint64_t tile = first / kTileElements, in_tile = first % kTileElements;
    const uint64_t end = std::min((tile + 1) * kTileElements, elements.end);
    const uint64_t before = tile - first_tile;  // tiles of the run
    Piece piece{tiles, steps + (first - part_begin), std::min(end, part_end) - std::min(first, part_end)};
    piece.tile.record += before * layout_.tile_bytes();
    piece.tile.gradients += before * kTileElements * bytes_of(tiles.gradient_type);
    if (tiles.parameters != nullptr)
      piece.tile.parameters += before * kTileElements * bytes_of(tiles.parameter_type);
    if (tiles.old_parameters != nullptr)
      piece.tile.old_parameters += before * kTileElements * bytes_of(master_parameter_type(layout_.master));
    piece.tile.rounding_place += before * kTileElements;
    piece.tile.first_element = in_tile;
    piece.tile.element_count = end - first;
    body(piece);
    first = end;
  }
}

// Of the record's moments, at `record`. What the step is made of goes to `made`, which has a tile.
TileRun MatrixTiles::momentum_run(const Piece& piece, std::byte* record, float* made) const {
  TileRun run = piece.tile;
  run.layout = moments_;
  run.record = record;
  run.parameters = reinterpret_cast<std::byte*>(made);
  run.old_parameters = run.parameters;
  run.parameter_type = DataType::fp32;
  run.parameter_bits = 0;
  return run;
}

void MatrixTiles::look_at_piece(const OptimizerStep& momentum, const Piece& piece) const {
  alignas(64) TileOfFloats made, moment;
  auto* const copy = reinterpret_cast<std::byte*>(moment.data());
  std::memcpy(copy, piece.tile.record + layout_.moment_offset(0), moments_.tile_bytes());
  std::ranges::fill_n(made.begin() + piece.tile.first_element, piece.tile.element_count, 0.0f);
  update_tiles(instruction_set_, momentum, momentum_run(piece, copy, made.data()));
  convert_from_float(instruction_set_, made.data() + piece.tile.first_element,
                     reinterpret_cast<std::byte*>(piece.steps), DataType::bf16, piece.step_count);
}

// The gradient is read before the parameters, which may be made over it.
void MatrixTiles::update_piece(const OptimizerStep& momentum, const OptimizerStep& weights,
                               const Piece& piece) const {
  alignas(64) TileOfFloats made;
  std::ranges::fill_n(made.begin() + piece.tile.first_element, piece.tile.element_count, 0.0f);
  update_tiles(instruction_set_, momentum,
               momentum_run(piece, piece.tile.record + layout_.moment_offset(0), made.data()));
  alignas(64) std::array<Bf16, kTileElements> steps;
  Bf16* const first = steps.data() + piece.tile.first_element;
  std::copy_n(piece.steps, piece.step_count, first);
  std::fill(first + piece.step_count, first + piece.tile.element_count, Bf16{});
  TileRun run = piece.tile;
  run.layout.moment_count = 0;
  run.gradients = reinterpret_cast<const std::byte*>(steps.data());
  run.gradient_type = DataType::bf16;
  update_tiles(instruction_set_, weights, run);
}

}  // namespace terrace
