// ParamHome: where the parameters of every chunk live below the device, and how one chunk's parameters get to
// the device and come back after an update.
//
//   cpu   every chunk has a host slot
//   nvme  some chunks have a host slot (the cache), the others live in the tier file and pass through
//         staging slots, or are read by the device itself
//   none  there is no home below the device: fetches never happen, publishing copies straight to the
//         device slot
//
// Used by the step thread; reads from the tier file complete on the I/O thread. While an update runs beside
// the step thread, publication() and old() are the update's.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <terrace/aio/io_thread.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/commits/epoch_committer.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/old_parameters.h>
#include <terrace/offload/homes/publication.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class ParamHome {
 public:
  // There are `stores` and a `reader` where parameters are on nvme; all references outlive the home.
  ParamHome(const FlatSpace& space, Placement placement, const MemoryPlan& plan, HostArena& arena,
            Device& device, const ParameterStores& stores, io::IoThread* reader, StepWatch& watch);
  ~ParamHome();

  // Before the first fetch: what lives in the tier file is read by this, the device's own engine, and nothing
  // of it is verified. Whatever else is read goes through host memory as ever.
  void read_past_host(io::IoThread& reader);

  Placement placement() const { return placement_; }
  // Whether a fetch would start without waiting for an earlier one.
  bool can_fetch_ahead(ChunkId chunk) const;
  // Starts the copy of a chunk's parameters into `slot` (begins slot.in), behind an update that is expected,
  // without waiting for that. Waits for the oldest staged fetch when all staging slots are taken.
  void start_fetch(ChunkId chunk, CacheSlot& slot);
  // The chunk's copy has arrived (its slot.in is done): its staging slot serves the next one.
  void fetch_finished(ChunkId chunk);
  // The number of the chunk's last copy to the device; 0: there was none.
  uint64_t copy_number(ChunkId chunk) const { return copy_of_[index_of(chunk)]; }

  // --- Updates that run beside the step thread ---
  // The chunk's parameters are those that are complete when `updated` is done. Then they also lie at `fresh`,
  // until forget_fresh(); null: they do not.
  void expect(ChunkId chunk, const Event& updated, const std::byte* fresh);
  // On the thread that runs the update, just before `updated` is done: what was asked for meanwhile and must
  // be read starts to be, or fails as the update did.
  void update_over(ChunkId chunk, const std::exception_ptr& failure);
  // `updated` is done.
  void stop_expecting(ChunkId chunk);
  bool has_fresh(ChunkId chunk) const { return fresh_[index_of(chunk)] != nullptr; }
  // That memory is about to change; nothing is copied from it any more.
  void forget_fresh();
  // Where the chunk's parameters are in host memory, or will be when its update is over; null: they must be
  // read.
  const std::byte* in_host_memory(ChunkId chunk) const;
  // Copies what is fresh of a chunk that lives on the device to its slot there, which is detached.
  void send_to_device(ChunkId chunk, CacheSlot& slot);

  // Waits until the chunk's copy to the device is over: first for what that is queued behind, each by its
  // name. Its failure is left to whoever uses the slot.
  void wait_arrived(ChunkId chunk, const Event& arriving);
  // A wait for the chunk's update.
  static WaitSubject update_subject(ChunkId chunk);
  // The way home of what an update made.
  Publication& publication() { return publication_; }
  const Publication& publication() const { return publication_; }
  // Compact state: the parameters of before an update, which are an input of it.
  OldParameters& old() { return old_; }
  const OldParameters& old() const { return old_; }

  // Parameters are part of commits: what is cached of them is changed once a commit has written it, and
  // what goes to the tier file takes slots that commits leave.
  void commit_with(EpochCommitter* committer);
  // Waits until a commit lets the chunk's home slot be changed; records of the chunk are waited for as well.
  void before_change(ChunkId chunk);

  // Copies the chunk's parameters from their home to `destination` (at least the chunk's bytes), blocking.
  // Not for placement none.
  void read(ChunkId chunk, std::byte* destination);

  // False: in the tier file.
  bool is_in_memory(ChunkId chunk) const {
    return placement_ != Placement::nvme || home_[index_of(chunk)] != nullptr;
  }
  // Its host slot, or null; the same for life.
  std::byte* host_slot(ChunkId chunk) const { return home_[index_of(chunk)]; }
  // Of copies asked for, when they are asked for: the same in every run.
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t nvme_read_bytes() const { return nvme_read_bytes_; }
  uint64_t direct_read_bytes() const { return direct_read_bytes_; }  // of these, by the device itself

 private:
  // A chunk on its way from the tier file. It belongs to who is going to have the chunk, so that there are as
  // many as can be on their way, and not one for every chunk.
  struct Reading {
    ChunkTransfer transfer;
    ParamHome* home = nullptr;
    CacheSlot* slot = nullptr;  // into which the device reads; null: host memory
  };
  struct Staging {
    std::byte* memory = nullptr;
    CacheSlot* target = nullptr;
    uint32_t chunk = kNone;
    uint64_t copy = 0;  // the number of the copy to the device from it
    Reading reading;
    const Event& read() const { return reading.transfer.event(); }
  };
  // The name of a copy of the chunk's parameters to the device.
  static CopyName copy_name(ChunkId chunk);
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint8_t kFetchWaits = 1;  // in meeting_
  static constexpr uint8_t kUpdateOver = 2;
  static constexpr uint8_t kUpdateFailed = 4;
  static void on_direct_read(void* context, ChunkTransfer& transfer, const io::Completion& completion,
                             std::exception_ptr& failure) noexcept;

  void copy_in(ChunkId chunk, CacheSlot& slot, const std::byte* source, const Event* after,
               TransferReason reason);
  void wait_read(const Staging& staging);
  Staging& take_staging(ChunkId chunk, CacheSlot& slot);
  void release_staging(uint32_t index);
  // The chunk is going to be read: submit_read() starts it. What comes to host memory is verified.
  void expect_read(ChunkId chunk, Reading& reading, std::byte* memory, TransferReason reason);
  void submit_read(ChunkId chunk);
  Error direct_read_error(ChunkId chunk, const io::Completion& completion, const Error& failure) const;
  void read_behind_update(ChunkId chunk, const Event& updated);
  void read_into_slot(ChunkId chunk, CacheSlot& slot);
  void forget_direct_read(ChunkId chunk);
  bool is_read_past_host(ChunkId chunk) const;
  BlockStore& store_of(ChunkId chunk) const { return stores_.of(space_, chunk); }

  const FlatSpace& space_;
  Placement placement_;
  Device& device_;
  const ParameterStores stores_;
  io::IoThread* reader_;
  io::IoThread* file_reader_ = nullptr;  // the device's
  StepWatch& watch_;
  std::vector<std::byte*> home_;         // per chunk: its host slot, or null
  std::vector<const Event*> expected_;   // per chunk: of an update that may not be over, or null
  std::vector<const std::byte*> fresh_;  // per chunk: what an update made outside of its home, or null
  // Per chunk: which of a fetch that must be read and the update that it is behind has come. The second one
  // starts the read, so that no thread waits for the other.
  std::unique_ptr<std::atomic<uint8_t>[]> meeting_;
  OldParameters old_;
  Publication publication_;
  EpochCommitter* committer_ = nullptr;
  uint64_t most_blocks_;              // of a chunk
  std::vector<Reading*> reading_of_;  // per chunk: what was asked for last, or null
  // Per chunk of the tier file that the device reads.
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
