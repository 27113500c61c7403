// Publication: the way home of new parameters. They leave the memory where an update made them for the tier
// file, for their slot on the device or for this rank's shares there; those with a host slot are made there
// and are home already.
//
// The thread that runs the update uses it, on its engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/base/event.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/commits/committer.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/parameters/parameter_homes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class Publication {
 public:
  // All references outlive this.
  Publication(const RunContext& run, const ParameterHomes& homes);

  // Makes writes to the tier file take slots that commits leave; null: there are no commits.
  void commit_with(Committer* committer) { committer_ = committer; }

  // Sends the chunk's new parameters in `buffer` home. Returns the event that is done when they have left
  // `buffer`, or null if they are home already because `buffer` is their host slot. They go to the tier file
  // through `engine`, which the caller owns and polls; where they stay on the device, to their slot in
  // `device`. The caller calls forget() when the event is done, or finish() for everything.
  const Event* publish(ChunkId chunk, const std::byte* buffer, io::Engine* engine, DeviceCache* device);
  // Sends home the blocks that hold `bytes` bytes of the chunk's new parameters, which are at their places in
  // `buffer`, and waits until they are there.
  void publish_run(ChunkId chunk, const std::byte* buffer, uint64_t first_byte, uint64_t bytes,
                   io::Engine* engine, DeviceCache* device);
  // Forgets `gone`, which is done and no longer used by anyone; finish() throws its failure.
  void forget(const Event& gone);
  // Forgets everything published, which is done, with its failures.
  void forget_all();
  // Waits for an event that publish() returned; finish() throws its failure.
  void wait(const Event& gone, io::Engine* engine);
  // Waits for everything published; throws the first failure.
  void finish(io::Engine* engine);
  // The current subject of a wait for published parameters.
  WaitSubject subject() const;

  // Whether the chunk's parameters on the device are newer than in the tier, from which commits have them.
  void note_made_on_device(ChunkId chunk) { newer_on_device_[index_of(chunk)] = true; }
  void note_copied_to_tier(ChunkId chunk) { newer_on_device_[index_of(chunk)] = false; }
  bool is_newer_on_device(ChunkId chunk) const { return newer_on_device_[index_of(chunk)]; }

  // Bytes of requested copies and writes: the same in every run.
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t nvme_write_bytes() const { return nvme_write_bytes_; }

 private:
  struct Leaving {
    const Event* gone;
    ChunkTransfer* write;    // the write to the tier file, or null
    const DeviceCopy* copy;  // the copy to the device, or null
  };
  const DeviceCopy& start_copy(ChunkId chunk, const std::byte* buffer, uint64_t first_byte, uint64_t bytes,
                               DeviceCache& device);
  const Event* publish_to_device(ChunkId chunk, const std::byte* buffer, DeviceCache& device);
  const Event* publish_to_file(ChunkId chunk, const std::byte* buffer, io::Engine& engine);
  // Takes a slot of the store for the block; if only writes of `engine` may free one, waits for them.
  void take_slot(ChunkId chunk, uint32_t block, std::span<const std::byte> source, BlockStore::Write& write,
                 io::Engine& engine);
  ChunkTransfer& add_write();
  ChunkTransfer& take_write();

  const ChunkShards& shards_;
  const FlatSpace& space_;
  const Placement placement_;
  Device& device_;
  const ParameterHomes homes_;
  StepWatch& watch_;
  Committer* committer_ = nullptr;
  const uint64_t most_blocks_;  // the most blocks of a chunk
  std::vector<Leaving> leaving_;
  std::vector<std::unique_ptr<ChunkTransfer>> writes_;  // as many as were ever under way at once
  std::vector<ChunkTransfer*> free_writes_;
  std::exception_ptr failure_;         // the first failure of forgotten events
  std::vector<bool> newer_on_device_;  // per chunk
  uint64_t h2d_bytes_ = 0;
  uint64_t nvme_write_bytes_ = 0;
};

}  // namespace terrace
