// DeviceUpdate: runs the update where optimizer states live in device memory. Gradients and new parameters
// are there too, in this rank's shares or in slots; parameters with another home leave from there. The step
// thread, which owns the device, uses it.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/update/tile_update.h>

namespace terrace {

class DeviceUpdate {
 public:
  // `engine` is null when nothing lives on nvme.
  DeviceUpdate(const RunContext& run, const StateHomes& homes, TileUpdate& tiles, DeviceCache& cache,
               io::Engine* engine);

  // Updates the chunks, whose gradients must be complete. Throws the first failure after everything in flight
  // has ended.
  void run(const UpdateConstants& constants, std::span<const ChunkId> chunks);
  // Looks at the matrices of chunks (TileUpdate::look), which the workers reach.
  void look(const UpdateConstants& constants, std::span<const ChunkId> chunks);

  uint64_t d2h_bytes() const { return d2h_bytes_; }

 private:
  void update(ChunkId chunk);
  void for_each_block(ChunkId chunk, FunctionRef<void(uint64_t first, uint64_t count)> body);
  // `parameters` are those of the own tiles, in device memory.
  void compute(ChunkId chunk, std::byte* parameters);
  void send_home(ChunkId chunk);
  std::byte* landing();

  const ChunkShards& shards_;
  RecordStore& records_;
  GradientStore& gradients_;
  ParamHome& home_;
  TileUpdate& tiles_;
  DeviceCache& cache_;
  Device& device_;
  Workers& workers_;
  io::Engine* engine_;
  const uint64_t tile_bytes_;
  const uint64_t block_tiles_;
  // Per landing slot, the event of the parameters that last left it; null: the slot is empty. The slots are
  // taken in turns.
  std::array<const Event*, 2> leaving_{};
  uint32_t lane_ = 0;
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
