// The part of TrainingState that replaces the state, with initial values or those of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/space/tensor_runs.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

TrainingState::TrainingState(StateBlocks& blocks, StepBoundary& boundary, Hooks hooks)
    : blocks_(blocks), boundary_(boundary), hooks_(std::move(hooks)) {}

void TrainingState::begin_loading(std::string_view action, bool with_frozen) {
  boundary_.require_rest(action);
  if (with_frozen) hooks_.require_frozen_change("cannot load frozen parameters anew");
  blocks_.run().watch.set_activity("loading the state");
  blocks_.homes().params.begin_load();
  blocks_.drop_device_copies(StaleParams::all);
  blocks_.forget_fresh();
  hooks_.about_to_load();
}

// With two blocks one is filled while the other is written. `fill` begins the loading as soon as it has its
// source, so a failure before that has changed nothing.
void TrainingState::load_records(FillTiles fill) {
  const RunContext& run = blocks_.run();
  const RingBlock first_block(blocks_.ring());
  std::optional<RingBlock> second_block;
  if (run.plan.ring_slots > 1) second_block.emplace(blocks_.ring());
  const std::array<std::span<std::byte>, 2> memory = {
      first_block.memory(), second_block ? second_block->memory() : first_block.memory()};
  std::array<BlockTransfer, 2> writes;
  const uint64_t tile_bytes = run.plan.record_layout.tile_bytes();
  const uint64_t block_tiles = memory[0].size() / tile_bytes;
  size_t turn = 0;
  try {
    for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!run.is_trained(chunk)) continue;
      std::byte* const parameters = blocks_.memory_for(chunk);
      const uint64_t tiles = run.shards.own(chunk).tile_count;
      for (uint64_t first = 0; first < tiles; first += block_tiles) {
        writes[turn].finish(run.watch);
        const std::span<std::byte> block =
            memory[turn].first(std::min(block_tiles, tiles - first) * tile_bytes);
        fill(chunk, first, block, parameters + first * blocks_.parameter_tile_bytes(chunk));
        blocks_.homes().records.start_write(chunk, first, block, writes[turn]);
        if (second_block) turn = 1 - turn;
      }
      blocks_.publish(chunk, parameters);
    }
    for (BlockTransfer& write : writes) write.finish(run.watch);
  } catch (...) {
    // Writes in flight refer to memory that goes now.
    for (BlockTransfer& write : writes) write.settle(run.watch);
    throw;
  }
  blocks_.homes().steps.reset();
  StateCustody& custody = boundary_.custody();
  if (!custody.is_changing()) custody.begin_loading(StatePart::trained);  // `fill` was never called
  custody.end_loading(StatePart::trained);
}

void TrainingState::load_frozen(FunctionRef<void(ChunkId, std::span<std::byte>)> fill) {
  const FlatSpace& space = blocks_.run().space;
  const ChunkShards& shards = blocks_.run().shards;
  boundary_.custody().begin_loading(StatePart::frozen);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (space.section_of(chunk).trainable) continue;
    std::byte* const parameters = blocks_.memory_for(chunk);
    fill(chunk, {parameters, shards.param_bytes(chunk)});
    blocks_.publish(chunk, parameters);
  }
  boundary_.custody().end_loading(StatePart::frozen);
}

void TrainingState::initialise(FunctionRef<void(TensorId, uint64_t, std::span<float>)> values) {
  begin_loading("cannot initialise", true);
  const RunContext& run = blocks_.run();
  const auto fill_tile = [&](ChunkId chunk, uint64_t own_tile, float* to) {
    std::fill_n(to, kTileElements, 0.0f);
    const uint64_t tile = run.shards.own(chunk).first_tile + own_tile;
    for_each_tensor_in(run.space, chunk, tile * kTileElements, kTileElements,
                       [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t count) {
                         values(tensor, first, {to + at, count});
                       });
  };
  const RecordLayout& layout = run.plan.record_layout;
  load_records([&](ChunkId chunk, uint64_t first_tile, std::span<std::byte> tiles, std::byte* parameters) {
    boundary_.custody().begin_loading(StatePart::trained);
    if (run.options.dry) return;
    run.workers.parallel_for(tiles.size() / layout.tile_bytes(), [&](size_t t) {
      std::byte* const tile = tiles.data() + t * layout.tile_bytes();
      alignas(64) float masters[kTileElements];
      fill_tile(chunk, first_tile + t, masters);
      blocks_.place_masters(masters, run.space.section_of(chunk).type, tile,
                            parameters + t * blocks_.parameter_tile_bytes(chunk));
      std::memset(tile + layout.master_bytes(), 0, layout.tile_bytes() - layout.master_bytes());
    });
  });
  load_frozen([&](ChunkId chunk, std::span<std::byte> parameters) {
    if (run.options.dry) return;
    run.workers.parallel_for(run.shards.own(chunk).tile_count, [&](size_t t) {
      alignas(64) float tile[kTileElements];
      fill_tile(chunk, t, tile);
      convert_from_float(run.instruction_set, tile,
                         parameters.data() + t * blocks_.parameter_tile_bytes(chunk),
                         run.space.section_of(chunk).type, kTileElements);
    });
  });
  blocks_.homes().params.end_load();
}

namespace {

// Reads what is passed over a piece at a time.
class Dropped {
 public:
  explicit Dropped(FunctionRef<void(std::span<std::byte>)> source) : source_(source) {}
  void operator()(uint64_t bytes) {
    memory_.resize(std::min<uint64_t>(bytes, kPiece));
    for (; bytes > 0; bytes -= memory_.size()) {
      memory_.resize(std::min<uint64_t>(bytes, memory_.size()));
      source_(memory_);
    }
  }

 private:
  static constexpr uint64_t kPiece = kMiB;
  FunctionRef<void(std::span<std::byte>)> source_;
  std::vector<std::byte> memory_;
};

}  // namespace

void TrainingState::import_records(FunctionRef<void(std::span<std::byte>)> source) {
  Dropped skip(source);
  import_records(source, skip);
}

void TrainingState::import_records(FunctionRef<void(std::span<std::byte>)> source,
                                   FunctionRef<void(uint64_t)> skip) {
  begin_loading("cannot load", false);
  const RunContext& run = blocks_.run();
  const uint64_t tile_bytes = run.plan.record_layout.canonical().tile_bytes();
  uint64_t next_tile = 0, chunk_begin = 0;  // in flat order
  const auto take = [&](std::span<std::byte> tiles) {
    source(tiles);
    next_tile += tiles.size() / tile_bytes;
    boundary_.custody().begin_loading(StatePart::trained);
  };
  const auto skip_to = [&](uint64_t tile) {
    if (tile > next_tile) skip((tile - next_tile) * tile_bytes);
    next_tile = tile;
  };
  ChunkId last{};
  load_records([&](ChunkId chunk, uint64_t first, std::span<std::byte> tiles, std::byte* parameters) {
    for (; index_of(last) < index_of(chunk); last = ChunkId{index_of(last) + 1})
      chunk_begin += run.is_trained(last) ? run.space.chunk(last).tile_count() : 0;
    skip_to(chunk_begin + run.shards.own(chunk).first_tile + first);
    if (run.converts_records()) {
      blocks_.split_each(tiles, parameters, take);
    } else {
      take(tiles);
    }
    if (!run.is_compact()) blocks_.derive_parameters(chunk, tiles, parameters);
  });
  skip_to(record_tile_count());
  blocks_.homes().params.end_load();
}

std::span<const uint64_t> TrainingState::tensor_steps() const {
  return blocks_.homes().steps.counts();
}

void TrainingState::set_tensor_steps(std::span<const uint64_t> counts) {
  boundary_.require_rest("cannot set the steps of");
  if (counts.size() != tensor_steps().size())
    throw Error(ErrorKind::misuse,
                {"cannot set the steps of tensors", fmt::format("{} counts", counts.size()),
                 fmt::format("{} are kept", tensor_steps().size()),
                 "give one for each tensor, where unused gradients are skipped"});
  blocks_.homes().steps.set(counts);
  if (blocks_.run().options.ranks > 1) note_written(checksum_of(std::as_bytes(counts)));
}

void TrainingState::import_frozen(FunctionRef<void(std::span<std::byte>)> source) {
  Dropped skip(source);
  import_frozen(source, skip);
}

void TrainingState::import_frozen(FunctionRef<void(std::span<std::byte>)> source,
                                  FunctionRef<void(uint64_t)> skip) {
  begin_loading("cannot load", true);
  const RunContext& run = blocks_.run();
  load_frozen([&](ChunkId chunk, std::span<std::byte> parameters) {
    const uint64_t before = run.shards.first_param_byte(chunk);
    if (before > 0) skip(before);
    if (!parameters.empty()) source(parameters);
    const uint64_t behind = run.space.param_bytes(chunk) - before - parameters.size();
    if (behind > 0) skip(behind);
  });
  blocks_.homes().params.end_load();
}

}  // namespace terrace
