// OldParameters: the bf16 parameters before an update, which are an input of the update where records are
// compact (hold only the masters' lower bits). A home slot holds them itself; from the tier file and from the
// device they come into staging slots of their own. It must never be asked for parameters that an update has
// written already.
//
// The thread that runs the update uses it, on its engine; for parameters on the device this is the thread of
// the device cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/event.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/parameters/parameter_homes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class OldParameters {
 public:
  // All references outlive this.
  OldParameters(const RunContext& run, HostArena& arena, const ParameterHomes& homes);
  // No transfer may be under way.
  ~OldParameters();
  OldParameters(const OldParameters&) = delete;
  OldParameters& operator=(const OldParameters&) = delete;

  // Starts the chunk's parameters on their way to host memory: from the tier file through `engine`, whose
  // completions make them open, or from the device: from their slot of `cache`, which may be null unless
  // parameters stay there. Returns false when no staging slot is free: release() another one first. For a
  // chunk with a home slot, and for an open one, there is nothing to do and it returns true.
  bool start_open(ChunkId chunk, io::Engine* engine, DeviceCache* cache);
  bool is_open(ChunkId chunk) const;
  // True if some chunk is being read from the tier file.
  bool is_reading() const;
  // Blocks until the chunk is open.
  void wait_open(ChunkId chunk);
  // The parameters of an open chunk. Throws Error(io) and Error(corrupt) when they could not be read.
  const std::byte* parameters(ChunkId chunk) const;
  // Frees the chunk's staging slot, since the update is done with its parameters.
  void release(ChunkId chunk);

  // Bytes of requested transfers.
  uint64_t nvme_read_bytes() const { return nvme_read_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }

 private:
  struct Staging {
    std::byte* memory = nullptr;
    ChunkId chunk{};
    ChunkTransfer read;  // from the tier file
    DeviceCopy copied;   // from the device
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  const Event& arrived(const Staging& staging) const {
    return store_ != nullptr ? staging.read.event() : staging.copied;
  }
  void start_read(Staging& staging, io::Engine& engine);
  void start_copy(Staging& staging, DeviceCache* cache);

  const ChunkShards& shards_;
  Device& device_;
  BlockStore* const store_;  // null unless parameters are on nvme
  const ParameterHomes homes_;
  StepWatch& watch_;
  std::unique_ptr<Staging[]> staging_;
  uint32_t staging_count_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> staging_of_;  // by chunk; kNone
  uint64_t nvme_read_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
