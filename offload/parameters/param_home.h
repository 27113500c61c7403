// ParamHome: the place of every chunk's parameters below the device, and the way of one chunk's parameters to
// the device and back after an update.
//
//   cpu   every chunk has a host slot
//   nvme  some chunks have a host slot (the cache), the others live in the tier file and pass through
//         staging slots, or are read by the device itself
//   none  there is no home below the device: fetches never happen, publishing copies straight to the
//         device slot; or with DeviceShares, which are the home then, they copy from there and to there
//
// Chunks of the caller's tensors have no home here: callers() knows where they are.
//
// The step thread uses it; reads from the tier file complete on the I/O thread. While an update runs beside
// the step thread, publication() and old() belong to the update.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <terrace/aio/io_thread.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/commits/committer.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/parameters/caller_tensors.h>
#include <terrace/offload/parameters/device_shares.h>
#include <terrace/offload/parameters/gathers.h>
#include <terrace/offload/parameters/old_parameters.h>
#include <terrace/offload/parameters/parameter_homes.h>
#include <terrace/offload/parameters/publication.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class ParamHome {
 public:
  // All that comes to the device from here is this rank's share, and `gathers` bring the others'. All
  // references outlive the home.
  ParamHome(const RunContext& run, HostArena& arena, const ParameterStores& stores, Gathers& gathers);
  ~ParamHome();

  // Fetches chunks that live in the tier file through `reader`, the device's own engine, without verifying
  // them. Call it before the first fetch. All other reads still go through host memory.
  void read_past_host(io::IoThread& reader);

  Placement placement() const { return placement_; }
  // True if a fetch would start without waiting for an earlier one.
  bool can_fetch_ahead(ChunkId chunk) const;
  // Starts the copy of a chunk's parameters into `slot` (begins slot.in). The copy is queued behind an
  // expected update, without waiting for it. Waits for the oldest staged fetch when all staging slots are
  // taken.
  void start_fetch(ChunkId chunk, CacheSlot& slot);
  // Frees the staging slot of a chunk whose copy has arrived (its slot.in is done).
  void fetch_finished(ChunkId chunk);
  // The number of the chunk's last copy to the device; 0: there was none.
  uint64_t copy_number(ChunkId chunk) const { return copy_of_[index_of(chunk)]; }

  // --- Updates that run beside the step thread ---
  // Says that the chunk's new parameters are complete when `updated` is done. From then they also lie at
  // `fresh` until forget_fresh(), unless it is null.
  void expect(ChunkId chunk, const Event& updated, const std::byte* fresh);
  // The thread that runs the update calls this just before `updated` is done: a fetch that waits for it and
  // must be read starts reading, or fails as the update did.
  void update_over(ChunkId chunk, const std::exception_ptr& failure);
  // The same where the chunk's new parameters have come to the tier file.
  void update_written(ChunkId chunk) { gathers_.updated(chunk); }
  // Ends expect(): `updated` is done.
  void stop_expecting(ChunkId chunk);
  bool has_fresh(ChunkId chunk) const { return fresh_[index_of(chunk)] != nullptr; }
  // Forgets the memory at `fresh`, which is about to change; no copy from it to a slot may be under way.
  void forget_fresh();
  // The place of the chunk's parameters in host memory, where they are or will be when its update is over;
  // null: they must be read.
  const std::byte* in_host_memory(ChunkId chunk) const;
  // Copies the fresh parameters of a chunk that stays on the device to its slot there, which must be
  // detached.
  void send_to_device(ChunkId chunk, CacheSlot& slot);
  // Copies the fresh parameters of a chunk to this rank's share on the device.
  void send_to_share(ChunkId chunk);
  // The chunk's share lies in its detached slot: brings those of the other ranks.
  void gather_in_place(ChunkId chunk, CacheSlot& slot, TransferReason reason);

  // The chunk's parameters change, wherever they are.
  void forget_gathered(ChunkId chunk) { gathers_.forget(chunk); }
  // The whole state is about to be loaded, or values in it are about to change.
  void begin_load() { gathers_.begin_load(); }
  void end_load() { gathers_.end_load(); }

  // Waits until the chunk's copy to the device is over. It first waits for everything that the copy is queued
  // behind, each by its name. The copy's failure is left to the user of the slot.
  void wait_arrived(ChunkId chunk, const Event& arriving);
  // The chunk's parameters are at this address of the device, and are going to be used.
  void note_use(ChunkId chunk, const std::byte* parameters) { gathers_.note_use(chunk, parameters); }
  // The subject of a wait for the chunk's update.
  static WaitSubject update_subject(ChunkId chunk);
  // This rank's shares on the device, or null.
  const DeviceShares* device_shares() const { return device_shares_.get(); }
  // The tensors of the program.
  CallerTensors& callers() { return callers_; }
  const CallerTensors& callers() const { return callers_; }
  // The way home of new parameters.
  Publication& publication() { return publication_; }
  const Publication& publication() const { return publication_; }
  // The parameters before an update, which are an input of it with compact state.
  OldParameters& old() { return old_; }
  const OldParameters& old() const { return old_; }

  // Makes parameters part of commits: resident parameters are changed only once a commit has written them,
  // and writes to the tier file take slots that commits leave.
  void commit_with(Committer* committer);
  // Waits until the commit in progress allows changes of the chunk's home slot and of its resident records.
  void before_change(ChunkId chunk);

  // Copies the chunk's parameters from their home to `destination` (at least the chunk's bytes), blocking.
  // There must be a home.
  void read(ChunkId chunk, std::byte* destination);

  // False if the chunk's parameters live in the tier file.
  bool is_in_memory(ChunkId chunk) const {
    return placement_ != Placement::nvme || home_[index_of(chunk)] != nullptr || callers_.have(chunk);
  }
  // The host slot of a chunk, or of every chunk; null where there is none. They never change.
  std::byte* host_slot(ChunkId chunk) const { return home_[index_of(chunk)]; }
  std::span<std::byte* const> host_slots() const { return home_; }
  // Bytes of requested copies, counted at the request: the same in every run.
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t nvme_read_bytes() const { return nvme_read_bytes_; }
  // The device itself reads these of the nvme_read_bytes().
  uint64_t direct_read_bytes() const { return direct_read_bytes_; }

 private:
  // A chunk on its way from the tier file. The receiver of the chunk owns it, so there are as many as can be
  // under way, and not one for every chunk.
  struct Reading {
    ChunkTransfer transfer;
    ParamHome* home = nullptr;
    CacheSlot* slot = nullptr;  // the slot that the device reads into; null: host memory
  };
  struct Staging {
    std::byte* memory = nullptr;
    CacheSlot* target = nullptr;
    uint32_t chunk = kNone;
    uint64_t copy = 0;  // the number of the copy to the device from it
    Reading reading;
    const Event& read() const { return reading.transfer.event(); }
  };
  // Where gathers do not overlap with the step: waits for the one into the slot.
  void wait_where_asked(ChunkId chunk, const CacheSlot& slot);
  // The name of a copy of the chunk's parameters to the device.
  static CopyName copy_name(ChunkId chunk);
  static constexpr uint32_t kNone = UINT32_MAX;
  // The following are the bits of meeting_.
  static constexpr uint8_t kFetchWaits = 1;
  static constexpr uint8_t kUpdateOver = 2;
  static constexpr uint8_t kUpdateFailed = 4;
  static void on_direct_read(void* context, ChunkTransfer& transfer, const io::Completion& completion,
                             std::exception_ptr& failure) noexcept;

  void copy_in(ChunkId chunk, CacheSlot& slot, const std::byte* source, const Event* after,
               TransferReason reason);
  void wait_read(const Staging& staging);
  Staging& take_staging(ChunkId chunk, CacheSlot& slot);
  void release_staging(uint32_t index);
  // Prepares the read of a chunk, which submit_read() starts. Reads to host memory are verified.
  void expect_read(ChunkId chunk, Reading& reading, std::byte* memory, TransferReason reason);
  void submit_read(ChunkId chunk);
  Error direct_read_error(ChunkId chunk, const io::Completion& completion, const Error& failure) const;
  void read_behind_update(ChunkId chunk, const Event& updated);
  void read_into_slot(ChunkId chunk, CacheSlot& slot);
  void read_through_staging(ChunkId chunk, CacheSlot& slot);
  void fetch_share(ChunkId chunk, CacheSlot& slot);
  void forget_direct_read(ChunkId chunk);
  bool is_read_past_host(ChunkId chunk) const;
  BlockStore& store_of(ChunkId chunk) const { return stores_.of(space_, chunk); }

  const ChunkShards& shards_;
  const FlatSpace& space_;
  Placement placement_;
  Device& device_;
  const ParameterStores stores_;
  io::IoThread* reader_;
  Gathers& gathers_;
  io::IoThread* file_reader_ = nullptr;  // the device's own; null: all reads go through host memory
  StepWatch& watch_;
  std::vector<std::byte*> home_;         // per chunk: its host slot, or null
  std::vector<const Event*> expected_;   // per chunk: the event of an update that may be running, or null
  std::vector<const std::byte*> fresh_;  // per chunk: new parameters outside of its home, or null
  // Per chunk the bits kFetchWaits, kUpdateOver and kUpdateFailed. The later one of a fetch that must be read
  // and the update before it starts the read, so no thread waits for the other.
  std::unique_ptr<std::atomic<uint8_t>[]> meeting_;
  CallerTensors callers_;
  const std::unique_ptr<DeviceShares> device_shares_;  // null unless parameters are divided on the device
  OldParameters old_;
  Publication publication_;
  Committer* committer_ = nullptr;
  uint64_t most_blocks_;              // of a chunk
  std::vector<Reading*> reading_of_;  // per chunk: the last requested read, or null
  // Per chunk; null unless the device itself reads it from the tier file.
  std::vector<std::unique_ptr<Reading>> read_past_host_;
  std::unique_ptr<Staging[]> staging_;
  uint32_t staging_count_ = 0;
  std::vector<uint32_t> free_staging_;
  std::vector<uint32_t> held_staging_;  // oldest first
  std::vector<uint32_t> staging_of_;    // per chunk
  std::vector<uint64_t> copy_of_;       // per chunk: the number of its last copy to the device
  uint64_t copy_count_ = 0;
  uint64_t h2d_bytes_ = 0;
  uint64_t nvme_read_bytes_ = 0;
  uint64_t direct_read_bytes_ = 0;
};

}  // namespace terrace
