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
// the step thread, publish() and what belongs to it are the update's.
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
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class ParamHome {
 public:
  // `store` and `reader` are null unless parameters are on nvme; all references outlive the home. What is
  // frozen lies in `frozen` where there is one, else in `store`.
  ParamHome(const FlatSpace& space, Placement placement, const MemoryPlan& plan, HostArena& arena,
            Device& device, BlockStore* store, BlockStore* frozen, io::IoThread* reader, StepWatch& watch);
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
  // What a wait for what is published waits for at the moment.
  WaitSubject publication_subject();

  // `buffer` holds the chunk's new parameters: they go home. Returns what says that they have left `buffer`,
  // or null where they are home: `buffer` is their host slot. To the tier file they go through `engine`,
  // which the caller owns and polls; where they live on the device, to their slot in `device`. The caller
  // forgets what is published when it has arrived, or finishes it.
  const Event* publish(ChunkId chunk, const std::byte* buffer, io::Engine* engine, DeviceCache* device);
  // `gone` is done, and nobody looks at it any more; its failure is left to finish_publishing().
  void forget_published(const Event& gone);
  // All that was published is done; failures were seen.
  void forget_published();
  // Waits for what publish() returned; failures are left to finish_publishing().
  void wait_published(const Event& gone, io::Engine* engine);
  // Waits for everything published; throws the first failure.
  void finish_publishing(io::Engine* engine);

  // --- Compact state: the parameters of before an update are an input of it (OldParameters has the rules)
  // --- Parameters are part of commits: what is cached of them is changed once a commit has written it, and
  // what goes to the tier file takes slots that commits leave.
  void commit_with(EpochCommitter* committer) { committer_ = committer; }
  // Waits until a commit lets the chunk's home slot be changed; records of the chunk are waited for as well.
  void before_change(ChunkId chunk);
  // `cache` is null off the step thread.
  bool start_open_old(ChunkId chunk, io::Engine* engine, DeviceCache* cache) {
    return old_.start_open(chunk, engine, cache);
  }
  // Old parameters of some chunk are being read.
  bool is_reading_old() const { return old_.is_reading(); }
  bool is_open_old(ChunkId chunk) const { return old_.is_open(chunk); }
  void wait_open_old(ChunkId chunk, io::Engine* engine) { old_.wait_open(chunk, engine); }
  const std::byte* old_parameters(ChunkId chunk) const { return old_.parameters(chunk); }
  void release_old(ChunkId chunk) { old_.release(chunk); }
  // Whether they went to the device since this was last asked; placement none.
  bool take_published(ChunkId chunk);
  // An update made them where they live, on the device.
  void note_made_there(ChunkId chunk) { published_[index_of(chunk)] = true; }

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
  uint64_t direct_read_bytes() const { return direct_read_bytes_; }   // of these, by the device itself
  uint64_t old_read_bytes() const { return old_.nvme_read_bytes(); }  // from nvme, for updates
  uint64_t d2h_bytes() const { return old_.d2h_bytes(); }
  uint64_t nvme_write_bytes() const { return nvme_write_bytes_; }

 private:
  // A chunk on its way from the tier file. It belongs to who is going to have the chunk, so that there are as
  // many as can be on their way, and not one for every chunk.
  struct Reading {
    struct Block {
      Reading* of = nullptr;
      uint32_t block = 0;
      io::Request request{};
      bool pending = false;  // through std::atomic_ref: set by who submits it, cleared by who completes it
    };
    ParamHome* home = nullptr;
    ChunkId chunk{};
    std::byte* memory = nullptr;
    Event* event = nullptr;
    CacheSlot* slot = nullptr;  // into which the device reads; null: host memory
    uint64_t tag = 0;
    Event over;  // of a read by the device: nothing of it is under way
    std::vector<Block> blocks;
  };
  struct Staging {
    std::byte* memory = nullptr;
    Event read;
    CacheSlot* target = nullptr;
    uint32_t chunk = kNone;
    uint64_t copy = 0;  // the number of the copy to the device from it
    Reading reading;
  };
  // Fresh parameters of a chunk on their way to the tier file.
  struct Writing {
    struct Block {
      Writing* of = nullptr;
      uint32_t block = 0;
      BlockStore::Write write;
      bool pending = false;
    };
    ParamHome* home = nullptr;
    ChunkId chunk{};
    io::Engine* engine = nullptr;
    uint64_t tag = 0;
    Event written;
    std::vector<Block> blocks;
  };
  struct Publication {
    ChunkId chunk;
    const Event* gone;
    Writing* writing;  // null: to the device
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint8_t kFetchWaits = 1;  // in meeting_
  static constexpr uint8_t kUpdateOver = 2;
  static constexpr uint8_t kUpdateFailed = 4;
  static void on_read(void* context, const io::Completion& completion) noexcept;
  static void on_written(void* context, const io::Completion& completion) noexcept;

  void copy_in(ChunkId chunk, CacheSlot& slot, const std::byte* source, const Event* after,
               TransferReason reason);
  WaitSubject read_subject(ChunkId chunk);
  void wait_read(const Staging& staging);
  Staging& take_staging(ChunkId chunk, CacheSlot& slot);
  void release_staging(uint32_t index);
  // The chunk is going to be read; its event is done when every block is there, and verified where it is in
  // host memory, or failed.
  void begin_read(ChunkId chunk, Reading& reading, std::byte* memory, Event& event, TransferReason reason);
  void submit_read(ChunkId chunk);
  void fail_read(ChunkId chunk, const std::exception_ptr& failure);
  // One block of it is over.
  void end_block(Reading& reading, std::exception_ptr failure) noexcept;
  void end_direct_read(const Reading::Block& block, const io::Completion& completion);
  void read_behind_update(ChunkId chunk, const Event& updated);
  void read_into_slot(ChunkId chunk, CacheSlot& slot);
  void forget_direct_read(ChunkId chunk);
  bool is_read_past_host(ChunkId chunk) const;
  static const io::Request* pending_request(Reading& reading);
  static const io::Request* pending_request(Writing& writing);
  BlockStore& store_of(ChunkId chunk) const {
    return frozen_ != nullptr && !space_.section_of(chunk).trainable ? *frozen_ : *store_;
  }
  // The file of a request of the chunk, which may be null.
  std::string_view file_of(ChunkId chunk, const io::Request* request) const;
  static void submit_write(Writing::Block& block);
  // Takes a slot of the store for the block, from which it leaves.
  void begin_write(Writing::Block& block, std::span<const std::byte> source);
  Writing& add_writing();
  Writing& take_writing();
  const Event* publish_to_device(ChunkId chunk, const std::byte* buffer, DeviceCache* device);
  const Event* publish_to_file(ChunkId chunk, const std::byte* buffer, io::Engine* engine);

  const FlatSpace& space_;
  Placement placement_;
  Device& device_;
  BlockStore* store_;
  BlockStore* frozen_;
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
  EpochCommitter* committer_ = nullptr;
  std::vector<bool> published_;       // per chunk, placement none: take_published()
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
  std::vector<Publication> publishing_;
  std::vector<std::unique_ptr<Writing>> writings_;  // as many as were ever under way at once
  std::vector<Writing*> free_writings_;
  std::exception_ptr publishing_failure_;  // the first of what was forgotten
  uint64_t h2d_bytes_ = 0;
  uint64_t nvme_read_bytes_ = 0;
  uint64_t direct_read_bytes_ = 0;
  uint64_t nvme_write_bytes_ = 0;
};

}  // namespace terrace
