// BlockStore: a set of blocks, addressed by chunk and number, in slots of one file per path, with a checksum
// per block kept in memory and in manifests (a lost write must not pass with its old checksum). It makes
// requests and checks bytes; it must never submit a transfer of a block itself: when that happens is the
// caller's decision.
//
// Layout of a file: slot s at byte s * block_bytes, and a block at the beginning of its slot. Behind the
// slots is the mark by which a later job knows the file (TierFolder::mark()), and nothing else.
//
// In place, a block is overwritten where it lies, unless another path has a free slot and is the better one.
// Otherwise every write goes to a free slot, and the slot before returns to the free ones when no snapshot
// has it: what a snapshot saw stays readable, whatever is written and whatever fails.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/error.h>
#include <terrace/base/log.h>
#include <terrace/base/mutex.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/memory/tier/tier_manifest.h>
#include <terrace/memory/tier/tier_space.h>

namespace terrace {

class SlotMap;

struct BlockStoreOptions {
  std::string name;          // "records", "params"
  uint64_t block_bytes = 0;  // a multiple of 4096
  // By ChunkId; multiples of 4096; 0: this chunk is not here. The last block of a chunk may be short.
  std::vector<uint64_t> chunk_bytes = {};
  uint64_t spare_slots = 0;  // beyond one per block
  uint64_t leave_bytes = 0;  // that stay free on its paths together, if only head-room is in the way
  bool in_place = true;
  bool verify = true;                // what is read is compared
  std::vector<uint32_t> paths = {};  // of the space, which hold the slots; none: all of them
};

// Where a block lies, for whoever copies it without reading it.
struct BlockPlace {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Thread-safe, all of it; what is done to one block is ordered by the caller. One short mutex, under which
// nothing is read, written or hashed, and only the balancer's is taken.
class BlockStore {
 public:
  // Creates the files (0600, they must not exist) and reserves their space. Slots that the first write of
  // every block will not reach are written once, because fresh space is slower to write; waits for that, on
  // the thread that owns the engine. In a dry space nothing is made, checked or hashed; slots are handed out
  // as ever. Throws Error(capacity) when the space is not there, else Error(io).
  BlockStore(TierSpace& space, BlockStoreOptions options, io::Engine& engine, Log& log);
  // Opens the files of a commit of this space: its blocks, and slots that are kept for retained commits (see
  // take_retained). Throws Error(config) when the layout does not fit the options, Error(corrupt) when files
  // are not as the manifests say. Never in place.
  BlockStore(TierSpace& space, BlockStoreOptions options, const StoreLayout& epoch,
             std::span<const StoreLayout> retained, Log& log);
  // Snapshots are gone before. In place the files go now, otherwise they are the space's to remove or keep.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  const std::string& name() const { return options_.name; }
  bool in_place() const { return options_.in_place; }
  uint32_t block_count(ChunkId chunk) const;
  uint64_t block_bytes(ChunkId chunk, uint32_t block) const;
  uint64_t chunk_bytes(ChunkId chunk) const { return options_.chunk_bytes[index_of(chunk)]; }
  uint64_t file_bytes() const;  // of all slots
  // Of its files, for engines that register them; open for as long as the store lives.
  std::vector<int> descriptors() const;
  // On which path one of these files is.
  uint32_t path_index_of(int descriptor) const;
  const PathBalancer& balancer() const { return space_.balancer(); }
  // Where the block lies now; it must have been written.
  uint32_t path_index_of(ChunkId chunk, uint32_t block) const;
  // Whether the block was ever written.
  bool written(ChunkId chunk, uint32_t block) const;

  // --- Reading ---
  // For the whole block, which must have been written; the caller adds the callback. Memory is aligned to
  // 4096. Every request made here is submitted, and ended below once it has completed, whatever came of it.
  io::Request read_request(ChunkId chunk, uint32_t block, std::span<std::byte> destination);
  // Throws Error(io) for a failed completion, and Error(corrupt) naming file, chunk, offset and both
  // checksums when the bytes are not those that were written.
  void end_read(ChunkId chunk, uint32_t block, const io::Request& request, const io::Completion& completion);
  // The same in two steps, for whoever computes with the bytes and wants them in a cache: when it has
  // completed, and when they are needed.
  void end_transfer(const io::Request& request, const io::Completion& completion);
  void verify(ChunkId chunk, uint32_t block, const io::Request& request) const;

  // --- Writing ---
  struct Write {
    ChunkId chunk{};
    uint32_t block = 0;
    StoredBlock to;
    uint32_t attempts = 0;
    io::Request request{};
    bool has_arrived = false;  // see arrived()
  };
  // Takes a slot and the checksum of `source`, which stays as it is until the write has ended. The caller
  // adds the callback to write.request. False: no slot is free (snapshots have them), and nothing happened.
  bool begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source, Write& write);
  // May be called when the completion is there and end_write() comes later: the path rests from now on.
  void arrived(Write& write) noexcept;
  enum class WriteEnd : uint8_t { done, again, failed };
  // done: the block is what was written, and its slot before is free unless a snapshot has it.
  // again: submit write.request once more; it leads to another slot, and the bad one is set aside. Not in
  // place. failed: the block is what it was before, except in place: there its bytes are lost. io_error()
  // says why.
  WriteEnd end_write(Write& write, const io::Completion& completion) noexcept;

  // What went wrong with a transfer: path, offset, bytes, the system's words and what to do.
  Error io_error(const io::Request& request, const io::Completion& completion) const;
  // The file's, for as long as the store lives.
  const std::string& path_of(const io::Request& request) const;

  // --- Snapshots; never in place ---
  // Every block as it was at one moment. Its slots stay as they are until it goes.
  class Snapshot {
   public:
    Snapshot() = default;
    Snapshot(Snapshot&& other) noexcept;
    Snapshot& operator=(Snapshot&& other) noexcept;
    ~Snapshot();
    // Takes a block as it was written since: a write that has ended, and that no later one has followed.
    void adopt(const Write& write);
    explicit operator bool() const { return store_ != nullptr; }

   private:
    friend class BlockStore;
    Snapshot(BlockStore& store, uint32_t index) : store_(&store), index_(index) {}
    BlockStore* store_ = nullptr;
    uint32_t index_ = 0;
  };
  Snapshot snapshot();
  // The slots of a retained commit, by the position given to the constructor; once each.
  Snapshot take_retained(size_t position);
  bool written(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const;
  io::Request read_request(const Snapshot& snapshot, ChunkId chunk, uint32_t block,
                           std::span<std::byte> destination);
  void end_read(const Snapshot& snapshot, ChunkId chunk, uint32_t block, const io::Request& request,
                const io::Completion& completion);
  BlockPlace place(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const;
  StoreLayout layout_of(const Snapshot& snapshot) const;

  // Makes durable what was written before; the files that were written since the last one. After a failure it
  // fails for good: what the device lost it does not report twice; and it fails where a file is not found by
  // its name any more. Waits.
  void sync();

  // Slots that writes may take now; and those that were set aside.
  uint64_t free_slot_count() const;
  uint64_t bad_slot_count() const;
  // What set the last one aside: file and the system's words; empty when none was.
  std::string last_bad_slot() const;
  // Asserts that every slot is free, being written, set aside, or held by exactly the blocks and snapshots
  // that name it.
  void check() const;

 private:
  struct File;  // of one path

  void number_blocks();
  std::vector<uint32_t> share_out(std::span<const uint32_t> there) const;
  void create_file(uint32_t path, uint32_t slot_count, const io::Engine& engine);
  uint32_t open_file(uint32_t path, uint32_t slot_count);
  void remove_file(const File& file) const noexcept;
  void write_zeros(io::Engine& engine, const File& file, uint64_t first_slot);
  void require_layout(const StoreLayout& layout) const;
  size_t index_of_block(ChunkId chunk, uint32_t block) const;
  const File& file_of(int fd) const;
  void require_direct(ChunkId chunk, uint32_t block, std::span<const std::byte> memory) const;
  io::Request make_request(io::OpKind kind, const StoredBlock& where, std::byte* data, uint64_t bytes);
  io::Request make_read(const StoredBlock& where, ChunkId chunk, uint32_t block,
                        std::span<std::byte> destination);
  void compare(const StoredBlock& expected, ChunkId chunk, uint32_t block, const io::Request& request) const;
  bool choose_slot(size_t index, uint64_t bytes, uint32_t failed_path, StoredBlock& to)
      TERRACE_REQUIRES(mutex_);
  bool lies_in(size_t index, const StoredBlock& where) const TERRACE_REQUIRES(mutex_);
  StoredBlock stored(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const;
  void drop(Snapshot& snapshot) noexcept;

  TierSpace& space_;
  const BlockStoreOptions options_;
  Log& log_;
  const pid_t owner_ = getpid();
  std::vector<std::unique_ptr<File>> files_;  // by path; null: none there
  std::vector<uint64_t> first_block_;         // by ChunkId, and one more entry
  mutable Mutex mutex_;
  std::unique_ptr<SlotMap> map_ TERRACE_GUARDED_BY(mutex_);
  uint32_t last_bad_path_ TERRACE_GUARDED_BY(mutex_) = 0;
  int last_bad_error_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> candidates_ TERRACE_GUARDED_BY(mutex_);  // of choose_slot(), kept for its memory
  std::vector<Snapshot> retained_;
  Mutex sync_mutex_;  // of sync() alone, which waits
};

}  // namespace terrace
