// What a home of chunks is made on when it is tested alone: a flat space of three chunks, a plan, memory, and
// a store of blocks on an engine that goes wrong as planned.
#pragma once

#include <terrace/aio/io_thread.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/parameters/gathers.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/watch/step_watch.h>

#include "memory/tier/block_store_rig.h"

namespace terrace {

struct HomesRig : BlockStoreRig {
  static constexpr uint32_t kChunks = 3;

  // Chunks of one tile by default; slots of parameters have room for one chunk.
  explicit HomesRig(SimulatedDeviceOptions options = {.budget_bytes = 8 * kMiB},
                    std::vector<TensorSpec> tensors = {{"w", {kChunks * kTileElements}, DataType::bf16}},
                    uint64_t chunk_tiles = 1, uint32_t rank = 0, uint32_t ranks = 1)
      : space(std::move(tensors), chunk_tiles * kTileElements), shards(space, rank, ranks), device(options) {
    plan.slot_bytes = plan.share_bytes = space.param_bytes(ChunkId{0});
    plan.ring_slot_bytes = plan.record_layout.tile_bytes();
    plan.record_slot_bytes = chunk_tiles * plan.ring_slot_bytes;
    plan.parameter_chunks = plan.record_chunks = kChunks;
  }
  // A store with `chunk_bytes` of every chunk, written in place.
  BlockStore& make_store_of(uint64_t chunk_bytes) {
    BlockStoreOptions options;
    options.name = "homes";
    options.block_bytes = chunk_bytes;
    options.chunk_bytes.assign(kChunks, chunk_bytes);
    store = make_store(options);
    return *store;
  }
  // Every block of the store holds bytes of the seed 100 + its chunk.
  void fill_store() {
    for (uint32_t c = 0; c < kChunks; ++c) write(*store, ChunkId{c}, 0, 100 + c);
  }
  RunContext run_on(Device& other) {
    return {space, shards, wishes, plan, other, workers, clock, account, watch, log, InstructionSet::scalar};
  }
  static std::vector<std::byte> bytes_of_seed(uint64_t seed, uint64_t size) {
    std::vector<std::byte> bytes(size);
    fill_random(bytes, seed);
    return bytes;
  }

  FlatSpace space;
  const ChunkShards shards;
  MemoryPlan plan;
  HostArena arena{{.budget_bytes = 4 * kMiB, .lock_pages = false}, log};
  SimulatedDevice device;
  StepWatch watch;
  std::unique_ptr<BlockStore> store;
  OffloadOptions wishes;
  Workers workers{1};
  SteadyClock clock;
  TimeAccount account{clock};
  const RunContext run = run_on(device);
  NoGathers gathers;
};

// Gives the chunk, of a tile, a gradient on the device, every element of which is `value`.
inline void make_gradient(DeviceCache& cache, ChunkId chunk, float value) {
  const Schedule unknown;
  cache.begin_gradient(chunk, *cache.take_slot(EvictionContext{unknown, kNever}));
  cache.pin_gradient(chunk);
  auto* const elements = reinterpret_cast<Bf16*>(cache.gradient_address(chunk));
  for (uint64_t e = 0; e < kTileElements; ++e) elements[e] = to_bf16(value);
  cache.unpin_gradient(chunk);
}

inline bool hold_seed(const std::byte* bytes, uint64_t seed, uint64_t size) {
  const std::vector<std::byte> expected = HomesRig::bytes_of_seed(seed, size);
  return std::equal(expected.begin(), expected.end(), bytes);
}

}  // namespace terrace
