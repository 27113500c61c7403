// StateBlocks: reads and makes the state chunk by chunk and block by block, wherever it lives. Loading,
// exporting, restoring and commits share it. The step thread uses it, between steps only.
//
// Records of one chunk are a run of tiles; the ring holds a block of them at a time. Host memory for a
// chunk's parameters is their home slot, or, without one, a slot of gradients, which are spent between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/aio/ring_buffer.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/tiers/tier_stores.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/update/state_homes.h>

namespace terrace {

// RingBlock: a block of the ring, held for the life of this object.
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

class StateBlocks {
 public:
  // All references outlive this.
  StateBlocks(const RunContext& run, const StateHomes& homes, DeviceCache& cache, TierStores& tiers,
              io::RingBuffer& ring, TensorStates& states);

  const RunContext& run() const { return run_; }
  const StateHomes& homes() const { return homes_; }
  TierStores& tiers() const { return tiers_; }
  io::RingBuffer& ring() const { return ring_; }

  // --- Parameters ---
  // Host memory in which the chunk's parameters can be made.
  std::byte* memory_for(ChunkId chunk) const;
  // The chunk's parameters in host memory: in place, or copied to memory_for(chunk).
  const std::byte* parameters_of(ChunkId chunk);
  // The same, but only the blocks that hold `count` elements from `first_element` on are there.
  const std::byte* parameters_around(ChunkId chunk, uint64_t first_element, uint64_t count);
  // Sends the chunk's new parameters at `parameters` home; they are home when this returns.
  void publish(ChunkId chunk, const std::byte* parameters);
  // Sends the blocks home that hold these elements, from memory_for(chunk).
  void publish_around(ChunkId chunk, uint64_t first_element, uint64_t count);
  // Reads the blocks of `store` that hold `bytes` bytes of the chunk, to their places in `memory`.
  void read_blocks(BlockStore& store, ChunkId chunk, std::byte* memory, uint64_t first_byte, uint64_t bytes);
  // Waits until the commit in progress allows changes of the chunk in host memory, and notes that it is newer
  // than in the tier.
  void before_change(ChunkId chunk);
  // Notes that the chunk's tensors have values.
  void note_loaded(ChunkId chunk);
  // Waits for copies from the memory in which an update left new parameters, because this memory is about to
  // change.
  void forget_fresh();
  // Drops the device's copies of parameters, which are about to change below the device.
  void drop_device_copies(StaleParams stale);
  void drop_device_copy(ChunkId chunk);
  // Gives every rank the new parameters that the others have of a chunk that lives on the device.
  void gather_on_device(ChunkId chunk);

  // --- Records ---
  // Reads the blocks of the wanted chunks' records on nvme, several at a time, and hands them on in order,
  // verified. Allocates nothing, because a skipped step calls it too.
  void read_records(FunctionRef<bool(ChunkId)> wanted, FunctionRef<void(const BlockTransfer&)> take);
  // The tile of the chunk with which a block of its records begins.
  uint64_t first_tile_of(const BlockTransfer& block) const;

  // Brings bytes of the chunk that `owner` has to the same place on the first rank; every rank calls it.
  void bring_to_first_rank(uint32_t owner, ChunkId chunk, std::span<std::byte> bytes);

  // --- Arithmetic. `parameters` are those of the first of the tiles ---
  // Make parameters of whole masters, as an update does.
  void make_parameters(const float* masters, DataType type, uint64_t count, std::byte* parameters) const;
  void derive_parameters(ChunkId chunk, std::span<const std::byte> tiles, std::byte* parameters) const;
  // Stores the masters of one tile in the record's `tile` and in `parameters` of `type`.
  void place_masters(const float* masters, DataType type, std::byte* tile, std::byte* parameters) const;
  // One tile in checkpoint form, with whole masters; valid until the next call. canonical_tile() is its
  // memory.
  std::span<std::byte> join(std::span<const std::byte> tile, const std::byte* parameters);
  std::span<std::byte> canonical_tile();
  // Makes tiles and parameters from tiles in checkpoint form, which `source` fills one at a time.
  void split_each(std::span<std::byte> tiles, std::byte* parameters,
                  FunctionRef<void(std::span<std::byte> canonical)> source);
  uint64_t parameter_tile_bytes(ChunkId chunk) const {
    return kTileElements * bytes_of(run_.space.section_of(chunk).type);
  }

 private:
  void copy_to_host(ChunkId chunk, std::byte* destination);
  void copy_from_device(ChunkId chunk, std::byte* memory, uint64_t first_byte, uint64_t bytes);

  const RunContext& run_;
  const StateHomes homes_;
  DeviceCache& cache_;
  TierStores& tiers_;
  io::RingBuffer& ring_;
  TensorStates& states_;
  std::vector<std::byte> canonical_tile_;  // for compact records; empty until first needed
};

}  // namespace terrace
