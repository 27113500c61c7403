// The training state in and out of an Offloader: initialisation and checkpoints. Everything is streamed.
#include <terrace/offload/offloader_parts.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/masters.h>

namespace terrace {

// The host memory in which a chunk's parameters are made: their home, else a slot of gradients, which are
// spent between steps.
std::byte* Offloader::Parts::output_of(ChunkId chunk) {
  if (std::byte* slot = home->host_slot(chunk)) return slot;
  return gradients->spare_slot(chunk);
}

void Offloader::Parts::derive_parameters(ChunkId chunk, std::span<const std::byte> tiles,
                                         std::byte* parameters) {
  const DataType type = space.section_of(chunk).type;
  const uint64_t tile_bytes = plan.record_layout.tile_bytes();
  for (uint64_t t = 0; t * tile_bytes < tiles.size(); ++t) {
    const auto* master = reinterpret_cast<const float*>(tiles.data() + t * tile_bytes);
    convert_from_float(instruction_set, master, parameters + t * kTileElements * bytes_of(type), type,
                       kTileElements);
  }
}

void Offloader::Parts::place_masters(const float* masters, DataType type, std::byte* tile,
                                     std::byte* parameters) const {
  if (is_compact()) {
    split_masters(instruction_set, reinterpret_cast<const std::byte*>(masters), parameters, tile,
                  kTileElements);
  } else {
    std::memcpy(tile, masters, kTileElements * sizeof(float));
    convert_from_float(instruction_set, masters, parameters, type, kTileElements);
  }
}

void Offloader::Parts::join_each(std::span<const std::byte> tiles, const std::byte* parameters,
                                 FunctionRef<void(uint64_t, std::span<const std::byte>)> body) {
  const RecordLayout& layout = plan.record_layout;
  canonical_tile.resize(layout.canonical().tile_bytes());
  for (uint64_t t = 0; t * layout.tile_bytes() < tiles.size(); ++t) {
    join_tiles(instruction_set, layout, tiles.data() + t * layout.tile_bytes(),
               parameters + t * kTileElements * sizeof(Bf16), canonical_tile.data(), 1);
    body(t, canonical_tile);
  }
}

namespace {

// A block of the ring, for as long as it is needed.
class RingBlock {
 public:
  explicit RingBlock(io::RingBuffer& ring) : ring_(ring), memory_(ring.acquire()) {}
  ~RingBlock() { ring_.release(memory_); }
  RingBlock(const RingBlock&) = delete;
  RingBlock& operator=(const RingBlock&) = delete;
  std::span<std::byte> memory() const { return memory_; }

 private:
  io::RingBuffer& ring_;
  const std::span<std::byte> memory_;
};

}  // namespace

// Reads the blocks of the wanted chunks' records on nvme into the ring, several at a time, and hands them on
// in order, verified. Allocates nothing: a step that is skipped comes here too.
void Offloader::Parts::read_record_blocks(FunctionRef<bool(ChunkId)> wanted,
                                          FunctionRef<void(const BlockTransfer&)> take) {
  if (tiers.records() == nullptr) return;
  std::array<BlockTransfer, 32> reads;
  std::array<std::span<std::byte>, 32> memory;
  const size_t depth = std::min<size_t>(plan.ring_slots, reads.size());
  for (size_t r = 0; r < depth; ++r) memory[r] = ring.acquire();
  std::exception_ptr failure;
  try {
    size_t started = 0, taken = 0;
    const auto take_next = [&] {
      BlockTransfer& read = reads[taken++ % depth];
      read.finish(watch);
      take(read);
    };
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!space.section_of(chunk).trainable || !wanted(chunk)) continue;
      for (uint32_t b = 0; b < tiers.records()->block_count(chunk); ++b, ++started) {
        if (started - taken == depth) take_next();
        reads[started % depth].start_read(*tiers.records(), chunk, b, memory[started % depth],
                                          TransferPort(*tiers.engine()), {.what = "optimizer states"});
      }
    }
    while (taken < started) take_next();
  } catch (...) {
    failure = std::current_exception();
  }
  for (BlockTransfer& read : reads) read.settle(watch);
  for (size_t r = 0; r < depth; ++r) ring.release(memory[r]);
  if (failure != nullptr) std::rethrow_exception(failure);
}

// New parameters make every device copy stale; with parameters on the device each chunk needs its slot first.
// With two blocks one is filled while the other is written. `fill` begins the loading as soon as it has what
// it loads: what fails before has changed nothing.
void Offloader::Parts::load_records(FillTiles fill) {
  watch.set_activity("loading the state");
  forget_fresh();
  forget_cached();
  const RingBlock first_block(ring);
  std::optional<RingBlock> second_block;
  if (plan.ring_slots > 1) second_block.emplace(ring);
  const std::array<std::span<std::byte>, 2> blocks = {
      first_block.memory(), second_block ? second_block->memory() : first_block.memory()};
  std::array<BlockTransfer, 2> writes;
  const uint64_t block_tiles = blocks[0].size() / plan.record_layout.tile_bytes();
  size_t turn = 0;
  try {
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!space.section_of(chunk).trainable) continue;
      std::byte* const parameters = output_of(chunk);
      const uint64_t tiles = space.chunk(chunk).tile_count();
      for (uint64_t first = 0; first < tiles; first += block_tiles) {
        writes[turn].finish(watch);
        const std::span<std::byte> block =
            blocks[turn].first(std::min(block_tiles, tiles - first) * plan.record_layout.tile_bytes());
        fill(chunk, first, block,
             parameters + first * kTileElements * bytes_of(space.section_of(chunk).type));
        records->start_write(chunk, first, block, writes[turn]);
        if (second_block) turn = 1 - turn;
      }
      publish_loaded(chunk, parameters);
    }
    for (BlockTransfer& write : writes) write.finish(watch);
  } catch (...) {
    // What is in flight refers to what goes now.
    for (BlockTransfer& write : writes) write.settle(watch);
    throw;
  }
  if (plan.record_chunks == 0) custody.begin_loading(StatePart::trained);  // nothing was filled
  custody.end_loading(StatePart::trained);
}

void Offloader::Parts::publish_loaded(ChunkId chunk, const std::byte* parameters) {
  if (home->placement() == Placement::none && cache.param_state(chunk) == ChunkState::absent) {
    cache.begin_in_place(chunk, require_slot("parameters"));
  }
  home->publication().publish(chunk, parameters, tiers.engine(), &cache);
  home->publication().finish(tiers.engine());
  for (const TensorId tensor : space.tensors_of(chunk)) {
    if (states.state(tensor) == TensorState::free) states.change(tensor, TensorState::hold);
  }
}

void Offloader::Parts::load_frozen(FunctionRef<void(ChunkId, std::span<std::byte>)> fill) {
  custody.begin_loading(StatePart::frozen);
  forget_cached();
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (space.section_of(chunk).trainable) continue;
    std::byte* const parameters = output_of(chunk);
    fill(chunk, {parameters, space.param_bytes(chunk)});
    publish_loaded(chunk, parameters);
  }
  custody.end_loading(StatePart::frozen);
}

// Calls body(tensor, first_element_in_tensor, first_element_in_run, count) for each tensor within a run of
// elements of a chunk.
template <typename Body>
void Offloader::Parts::for_each_tensor_in(ChunkId chunk, uint64_t first_element, uint64_t count,
                                          Body body) const {
  const uint64_t begin = space.chunk(chunk).first_element + first_element;  // in the section
  for (const TensorId tensor : space.tensors_of(chunk)) {
    const TensorPlace& place = space.place(tensor);
    const uint64_t first = std::max(begin, place.first_element);
    const uint64_t last = std::min(begin + count, place.first_element + place.elements);
    if (first < last) body(tensor, first - place.first_element, first - begin, last - first);
  }
}

void Offloader::initialise(FunctionRef<void(TensorId, uint64_t, std::span<float>)> values) {
  Parts& p = *parts_;
  p.order.require_nothing_open("cannot initialise");
  finish_update();
  p.forget_device_copies(StaleParams::all);
  const auto fill_tile = [&](ChunkId chunk, uint64_t tile, float* to) {
    std::fill_n(to, kTileElements, 0.0f);
    p.for_each_tensor_in(chunk, tile * kTileElements, kTileElements,
                         [&](TensorId tensor, uint64_t first, uint64_t at, uint64_t count) {
                           values(tensor, first, {to + at, count});
                         });
  };
  const RecordLayout& layout = p.plan.record_layout;
  p.load_records([&](ChunkId chunk, uint64_t first_tile, std::span<std::byte> tiles, std::byte* parameters) {
    p.custody.begin_loading(StatePart::trained);
    if (p.options.dry) return;
    const DataType type = p.space.section_of(chunk).type;
    p.workers.parallel_for(tiles.size() / layout.tile_bytes(), [&](size_t t) {
      std::byte* const tile = tiles.data() + t * layout.tile_bytes();
      alignas(64) float masters[kTileElements];
      fill_tile(chunk, first_tile + t, masters);
      p.place_masters(masters, type, tile, parameters + t * kTileElements * bytes_of(type));
      std::memset(tile + layout.master_bytes(), 0, layout.tile_bytes() - layout.master_bytes());
    });
  });
  p.load_frozen([&](ChunkId chunk, std::span<std::byte> parameters) {
    if (p.options.dry) return;
    const DataType type = p.space.section_of(chunk).type;
    p.workers.parallel_for(p.space.chunk(chunk).tile_count(), [&](size_t t) {
      alignas(64) float tile[kTileElements];
      fill_tile(chunk, t, tile);
      convert_from_float(p.instruction_set, tile, parameters.data() + t * kTileElements * bytes_of(type),
                         type, kTileElements);
    });
  });
}

uint64_t Offloader::record_tile_count() const {
  uint64_t tiles = 0;
  for (const Section& section : parts_->space.sections())
    tiles += section.trainable ? section.elements / kTileElements : 0;
  return tiles;
}

void Offloader::export_records(FunctionRef<void(std::span<const std::byte>)> sink) {
  Parts& p = *parts_;
  static_cast<void>(p.finished_state("cannot export the optimizer states of"));
  p.watch.set_activity("saving the state");
  const RingBlock bounce(p.ring);
  const uint64_t block_tiles = bounce.memory().size() / p.plan.record_layout.tile_bytes();
  for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    const uint64_t tiles = p.space.section_of(chunk).trainable ? p.space.chunk(chunk).tile_count() : 0;
    const std::byte* const parameters = tiles > 0 && p.is_compact() ? p.parameters_of(chunk) : nullptr;
    for (uint64_t first = 0; first < tiles; first += block_tiles) {
      const std::span<std::byte> block =
          bounce.memory().first(std::min(block_tiles, tiles - first) * p.plan.record_layout.tile_bytes());
      p.records->read(chunk, first, block);
      if (!p.is_compact()) {
        sink(block);
      } else {
        p.join_each(block, parameters + first * kTileElements * sizeof(Bf16),
                    [&](uint64_t, std::span<const std::byte> canonical) { sink(canonical); });
      }
    }
  }
}

void Offloader::import_records(FunctionRef<void(std::span<std::byte>)> source) {
  parts_->order.require_nothing_open("cannot load");
  finish_update();
  parts_->forget_device_copies(StaleParams::all);
  Parts& p = *parts_;
  const RecordLayout& layout = p.plan.record_layout;
  p.load_records([&](ChunkId chunk, uint64_t, std::span<std::byte> tiles, std::byte* parameters) {
    if (!p.is_compact()) {
      source(tiles);
      p.custody.begin_loading(StatePart::trained);
      return p.derive_parameters(chunk, tiles, parameters);
    }
    p.canonical_tile.resize(layout.canonical().tile_bytes());
    for (uint64_t t = 0; t * layout.tile_bytes() < tiles.size(); ++t) {
      source(p.canonical_tile);
      p.custody.begin_loading(StatePart::trained);
      split_tiles(p.instruction_set, layout, p.canonical_tile.data(), tiles.data() + t * layout.tile_bytes(),
                  parameters + t * kTileElements * sizeof(Bf16), 1);
    }
  });
}

uint64_t Offloader::frozen_bytes() const {
  uint64_t bytes = 0;
  for (const Section& section : parts_->space.sections()) {
    bytes += section.trainable ? 0 : section.elements * bytes_of(section.type);
  }
  return bytes;
}

void Offloader::export_frozen(FunctionRef<void(std::span<const std::byte>)> sink) {
  Parts& p = *parts_;
  static_cast<void>(p.finished_state("cannot export the frozen parameters of"));
  for (uint32_t c = 0; c < p.space.chunk_count(); ++c) {
    if (p.space.section_of(ChunkId{c}).trainable) continue;
    sink({p.parameters_of(ChunkId{c}), p.space.param_bytes(ChunkId{c})});
  }
}

void Offloader::import_frozen(FunctionRef<void(std::span<std::byte>)> source) {
  parts_->order.require_nothing_open("cannot load");
  finish_update();
  parts_->forget_device_copies(StaleParams::all);
  parts_->load_frozen([&](ChunkId, std::span<std::byte> parameters) { source(parameters); });
}

// Copies a chunk's parameters to host memory from wherever they live.
void Offloader::Parts::read_chunk(ChunkId chunk, std::byte* destination) {
  if (home->placement() != Placement::none) return home->read(chunk, destination);
  cache.detach_param(chunk);
  CacheSlot& slot = cache.param_slot(chunk);
  home->wait_arrived(chunk, slot.in);
  slot.in.wait();  // for what it failed with
  slot.out.begin();
  device.copy_to_host(
      destination, slot.id, 0, space.param_bytes(chunk), nullptr, slot.out,
      from_device_note(options.step_events, TransferRole::param, TransferReason::other, index_of(chunk)));
  wait_watched(slot.out, watch, {"parameters", "device -> host", TimeCause::device_copy, chunk, nullptr, {}});
}

// A chunk's parameters in host memory: where they are, or copied there. Gradients are spent between steps.
const std::byte* Offloader::Parts::parameters_of(ChunkId chunk) {
  if (const std::byte* const there = home->in_host_memory(chunk)) return there;
  std::byte* const bounce = output_of(chunk);
  read_chunk(chunk, bounce);
  return bounce;
}

void Offloader::read_parameter(TensorId tensor, std::span<std::byte> destination) {
  Parts& p = *parts_;
  static_cast<void>(p.finished_state("cannot read a parameter of"));
  const TensorPlace& place = p.space.place(tensor);
  const uint64_t element_bytes = bytes_of(p.space.tensor(tensor).type);
  if (destination.size() < place.elements * element_bytes)
    throw Error(ErrorKind::misuse, {"cannot read the parameter", p.space.tensor(tensor).name,
                                    fmt::format("it has {} bytes, and there is room for {}",
                                                place.elements * element_bytes, destination.size()),
                                    "give it room for all of its elements, in its own precision"});
  for (uint32_t c = place.first_chunk; c < place.first_chunk + place.chunk_count; ++c) {
    const std::byte* const bounce = p.parameters_of(ChunkId{c});
    p.for_each_tensor_in(ChunkId{c}, 0, p.space.chunk(ChunkId{c}).elements,
                         [&](TensorId found, uint64_t first, uint64_t at, uint64_t count) {
                           if (found != tensor) return;
                           std::memcpy(destination.data() + first * element_bytes,
                                       bounce + at * element_bytes, count * element_bytes);
                         });
  }
}

}  // namespace terrace
