#include <terrace/offload/state/state_blocks.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {

StateBlocks::StateBlocks(const RunContext& run, const StateHomes& homes, DeviceCache& cache,
                         TierStores& tiers, io::RingBuffer& ring, TensorStates& states)
    : run_(run), homes_(homes), cache_(cache), tiers_(tiers), ring_(ring), states_(states) {}

// --- Parameters ---

std::byte* StateBlocks::memory_for(ChunkId chunk) const {
  if (std::byte* slot = homes_.params.host_slot(chunk)) return slot;
  return homes_.gradients.spare_slot(chunk);
}

const std::byte* StateBlocks::parameters_of(ChunkId chunk) {
  if (run_.is_callers(chunk)) return parameters_around(chunk, 0, run_.shards.elements(chunk));
  if (const std::byte* const there = homes_.params.in_host_memory(chunk)) return there;
  std::byte* const memory = memory_for(chunk);
  copy_to_host(chunk, memory);
  return memory;
}

const std::byte* StateBlocks::parameters_around(ChunkId chunk, uint64_t first_element, uint64_t count) {
  std::byte* const memory = memory_for(chunk);
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  if (run_.is_callers(chunk)) {
    homes_.params.callers().memory().gather(chunk, run_.shards.own(chunk).first_element() + first_element,
                                            count, memory + first_element * element_bytes);
    return memory;
  }
  if (const std::byte* const there = homes_.params.in_host_memory(chunk)) return there;
  if (run_.params_stay_on_device()) {
    copy_from_device(chunk, memory, first_element * element_bytes, count * element_bytes);
  } else if (const DeviceShares* const shares = homes_.params.device_shares()) {
    const uint64_t first_byte = first_element * element_bytes;
    shares->read(chunk, first_byte, memory + first_byte, count * element_bytes);
  } else {
    const ParameterStores stores = {tiers_.params(), tiers_.frozen()};
    read_blocks(stores.of(run_.space, chunk), chunk, memory, first_element * element_bytes,
                count * element_bytes);
  }
  return memory;
}

void StateBlocks::read_blocks(BlockStore& store, ChunkId chunk, std::byte* memory, uint64_t first_byte,
                              uint64_t bytes) {
  const uint64_t block_bytes = store.block_bytes(chunk, 0);
  if (bytes == 0) return;  // of a chunk of which this rank has nothing
  for (uint64_t at = first_byte / block_bytes * block_bytes; at < first_byte + bytes; at += block_bytes) {
    const auto block = static_cast<uint32_t>(at / block_bytes);
    BlockTransfer read;
    read.start_read(store, chunk, block, {memory + at, store.block_bytes(chunk, block)},
                    TransferPort(*tiers_.engine()), {.what = "parameters"});
    read.finish(run_.watch);
  }
}

void StateBlocks::copy_to_host(ChunkId chunk, std::byte* destination) {
  if (!run_.params_stay_on_device()) return homes_.params.read(chunk, destination);
  copy_from_device(chunk, destination, 0, run_.shards.param_bytes(chunk));
}

void StateBlocks::copy_from_device(ChunkId chunk, std::byte* memory, uint64_t first_byte, uint64_t bytes) {
  cache_.detach_param(chunk);
  CacheSlot& slot = cache_.param_slot(chunk);
  homes_.params.wait_arrived(chunk, slot.in);
  slot.in.wait();  // throws the failure of the copy
  slot.out.begin(to_host_copy("parameters", chunk));
  run_.device.copy_to_host(memory + first_byte, slot.id, run_.shards.first_param_byte(chunk) + first_byte,
                           bytes, nullptr, slot.out,
                           from_device_note(run_.options.hooks.step_events, TransferRole::param,
                                            TransferReason::other, index_of(chunk)));
  slot.out.wait(run_.watch);
}

void StateBlocks::publish(ChunkId chunk, const std::byte* parameters) {
  if (run_.is_callers(chunk)) {
    if (!run_.options.dry)
      homes_.params.callers().memory().scatter(chunk, run_.shards.own(chunk).first_element(),
                                               run_.shards.elements(chunk), parameters);
    return note_loaded(chunk);
  }
  if (run_.params_stay_on_device() && cache_.param_state(chunk) == ChunkState::absent) {
    CacheSlot* const slot = cache_.take_unused();
    TERRACE_ASSERT(slot != nullptr, "there is a slot for every chunk whose parameters stay on the device");
    cache_.begin_in_place(chunk, *slot);
  }
  Publication& way_home = homes_.params.publication();
  way_home.publish(chunk, parameters, tiers_.engine(), &cache_);
  way_home.finish(tiers_.engine());
  gather_on_device(chunk);
  note_loaded(chunk);
}

void StateBlocks::gather_on_device(ChunkId chunk) {
  if (!run_.params_stay_on_device() || run_.is_callers(chunk)) return;
  cache_.detach_param(chunk);
  homes_.params.gather_in_place(chunk, cache_.param_slot(chunk), TransferReason::other);
}

void StateBlocks::publish_around(ChunkId chunk, uint64_t first_element, uint64_t count) {
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  if (run_.is_callers(chunk)) {
    return homes_.params.callers().memory().scatter(chunk,
                                                    run_.shards.own(chunk).first_element() + first_element,
                                                    count, memory_for(chunk) + first_element * element_bytes);
  }
  homes_.params.publication().publish_run(chunk, memory_for(chunk), first_element * element_bytes,
                                          count * element_bytes, tiers_.engine(), &cache_);
}

void StateBlocks::before_change(ChunkId chunk) {
  homes_.params.before_change(chunk);
  if (run_.is_trained(chunk) && !homes_.records.is_streamed(chunk)) homes_.records.before_change(chunk);
}

void StateBlocks::note_loaded(ChunkId chunk) {
  for (const TensorId tensor : run_.space.tensors_of(chunk)) {
    if (states_.state(tensor) == TensorState::free) states_.change(tensor, TensorState::hold);
  }
}

void StateBlocks::forget_fresh() {
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!homes_.params.has_fresh(chunk)) continue;
    if (const DeviceCopy* arriving = cache_.arriving(chunk)) homes_.params.wait_arrived(chunk, *arriving);
  }
  homes_.params.forget_fresh();
}

void StateBlocks::drop_device_copies(StaleParams stale) {
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    if (stale == StaleParams::all || run_.is_trained(ChunkId{c})) homes_.params.forget_gathered(ChunkId{c});
  }
  if (!run_.params_stay_on_device()) cache_.drop_params(stale);
}

void StateBlocks::drop_device_copy(ChunkId chunk) {
  homes_.params.forget_gathered(chunk);
  if (!run_.params_stay_on_device()) cache_.drop_stale_param(chunk);
}

// --- Records ---

void StateBlocks::read_records(FunctionRef<bool(ChunkId)> wanted,
                               FunctionRef<void(const BlockTransfer&)> take) {
  BlockStore* const store = tiers_.records();
  if (store == nullptr) return;
  std::array<BlockTransfer, 32> reads;
  std::array<std::span<std::byte>, 32> memory;
  const size_t depth = std::min<size_t>(run_.plan.ring_slots, reads.size());
  for (size_t r = 0; r < depth; ++r) memory[r] = ring_.acquire();
  std::exception_ptr failure;
  try {
    size_t started = 0, taken = 0;
    const auto take_next = [&] {
      BlockTransfer& read = reads[taken++ % depth];
      read.finish(run_.watch);
      take(read);
    };
    for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!run_.is_trained(chunk) || !wanted(chunk)) continue;
      for (uint32_t b = 0; b < store->block_count(chunk); ++b, ++started) {
        if (started - taken == depth) take_next();
        reads[started % depth].start_read(*store, chunk, b, memory[started % depth],
                                          TransferPort(*tiers_.engine()), {.what = "optimizer states"});
      }
    }
    while (taken < started) take_next();
  } catch (...) {
    failure = std::current_exception();
  }
  for (BlockTransfer& read : reads) read.settle(run_.watch);
  for (size_t r = 0; r < depth; ++r) ring_.release(memory[r]);
  if (failure != nullptr) std::rethrow_exception(failure);
}

uint64_t StateBlocks::first_tile_of(const BlockTransfer& block) const {
  return block.block() * run_.plan.ring_slot_bytes / run_.plan.record_layout.tile_bytes();
}

void StateBlocks::bring_to_first_rank(uint32_t owner, ChunkId chunk, std::span<std::byte> bytes) {
  if (owner == 0) return;
  const uint32_t mine = run_.shards.rank();
  std::vector<CommPart> to(run_.shards.count()), from(run_.shards.count());
  if (mine == owner) to[0] = {bytes.data(), bytes.size()};
  if (mine == 0) from[owner] = {bytes.data(), bytes.size()};
  Event arrived;
  arrived.begin();
  run_.options.hooks.communicator->exchange(Lane::gather, to, from, nullptr, arrived,
                                            {"the state", index_of(chunk), owner});
  wait_watched(arrived, run_.watch,
               {"the state", "other ranks", TimeCause::ranks, chunk, nullptr, {}, RankWait::gather});
}

// --- Arithmetic ---

void StateBlocks::derive_parameters(ChunkId chunk, std::span<const std::byte> tiles,
                                    std::byte* parameters) const {
  const uint64_t tile_bytes = run_.plan.record_layout.tile_bytes();
  for (uint64_t t = 0; t * tile_bytes < tiles.size(); ++t)
    make_parameters(reinterpret_cast<const float*>(tiles.data() + t * tile_bytes),
                    run_.space.section_of(chunk).type, kTileElements,
                    parameters + t * parameter_tile_bytes(chunk));
}

void StateBlocks::make_parameters(const float* masters, DataType type, uint64_t count,
                                  std::byte* parameters) const {
  convert_from_float(run_.instruction_set, masters, parameters, type, count);
  const uint32_t bits = type == DataType::fp32 ? 0 : run_.options.parameter_bits;
  if (bits > 0) round_to_quantized(run_.instruction_set, bits, parameters, type, parameters, type, count);
}

void StateBlocks::place_masters(const float* masters, DataType type, std::byte* tile,
                                std::byte* parameters) const {
  if (run_.is_compact()) {
    split_masters(run_.instruction_set, run_.plan.record_layout.master,
                  reinterpret_cast<const std::byte*>(masters), parameters, tile, kTileElements);
  } else {
    std::memcpy(tile, masters, kTileElements * sizeof(float));
    make_parameters(masters, type, kTileElements, parameters);
  }
}

std::span<std::byte> StateBlocks::canonical_tile() {
  canonical_tile_.resize(run_.plan.record_layout.canonical().tile_bytes());
  return canonical_tile_;
}

std::span<std::byte> StateBlocks::join(std::span<const std::byte> tile, const std::byte* parameters) {
  const std::span<std::byte> joined = canonical_tile();
  join_tiles(run_.instruction_set, run_.plan.record_layout, tile.data(), parameters, joined.data(), 1);
  return joined;
}

void StateBlocks::split_each(std::span<std::byte> tiles, std::byte* parameters,
                             FunctionRef<void(std::span<std::byte>)> source) {
  const RecordLayout& layout = run_.plan.record_layout;
  const uint64_t parameter_bytes =
      run_.is_compact() ? kTileElements * bytes_of(master_parameter_type(layout.master)) : 0;
  const std::span<std::byte> canonical = canonical_tile();
  for (uint64_t t = 0; t * layout.tile_bytes() < tiles.size(); ++t) {
    source(canonical);
    split_tiles(run_.instruction_set, layout, canonical.data(), tiles.data() + t * layout.tile_bytes(),
                parameters + t * parameter_bytes, 1);
  }
}

}  // namespace terrace
