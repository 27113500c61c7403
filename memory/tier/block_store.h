// BlockStore: a set of blocks, addressed by chunk and number, in slots of one file per path, with a checksum
// per block kept in memory and in manifests (a lost write must not pass with its old checksum). It makes
// requests and checks bytes; it must never submit a transfer of a block itself, because the caller decides
// when.
//
// Layout of a file: slot s at byte s * block_bytes, and a block at the beginning of its slot. Behind the
// slots is only the mark by which a later job knows the file (TierFolder::mark()).
//
// In place, a block is overwritten where it lies, unless another path has a free slot and is the better one.
// Otherwise every write goes to a free slot, and the block's previous slot becomes free when no snapshot has
// it: the blocks of a snapshot stay readable, whatever is written and whatever fails.
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
  // The bytes of each chunk, by ChunkId: multiples of 4096; 0: this chunk is not here. The last block of a
  // chunk may be short.
  std::vector<uint64_t> chunk_bytes = {};
  uint64_t spare_slots = 0;  // slots beyond one per block
  // Head-room is cut, never the slots wanted, to leave this much free on its paths together.
  uint64_t leave_bytes = 0;
  bool in_place = true;
  bool verify = true;                // checksums of read blocks are compared
  std::vector<uint32_t> paths = {};  // paths of the space that hold the slots; none: all of them
};

// The place of a block, for copies that do not go through read requests.
struct BlockPlace {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Every function is thread-safe, but the caller orders the calls for one block. One short mutex guards the
// store: nothing is read, written or hashed under it, and only the balancer's mutex is taken.
class BlockStore {
 public:
  // Creates the files (0600, they must not exist) and reserves their space. Slots that the first write of
  // every block will not reach are written once, because fresh space is slower to write. The constructor
  // waits for that, on the thread that owns the engine. In a dry space nothing is made, checked or hashed;
  // slots are handed out as usual. Throws Error(capacity) when there is too little space, else Error(io).
  BlockStore(TierSpace& space, BlockStoreOptions options, io::Engine& engine, Log& log);
  // Opens the files of a commit of this space, with its blocks and the slots kept for retained commits (see
  // take_retained()). Throws Error(config) when the layout does not fit the options, Error(corrupt) when
  // files are not as the manifests say. Such a store is never in place.
  BlockStore(TierSpace& space, BlockStoreOptions options, const StoreLayout& commit,
             std::span<const StoreLayout> retained, Log& log);
  // All snapshots must be gone. In place the files are removed now; otherwise the space removes or keeps
  // them.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  const std::string& name() const { return options_.name; }
  bool in_place() const { return options_.in_place; }
  uint32_t block_count(ChunkId chunk) const;
  uint64_t block_bytes(ChunkId chunk, uint32_t block) const;
  uint64_t chunk_bytes(ChunkId chunk) const { return options_.chunk_bytes[index_of(chunk)]; }
  uint64_t file_bytes() const;  // bytes of all slots
  // The descriptors of its files, for engines that register them; open for as long as the store lives.
  std::vector<int> descriptors() const;
  // The path of the file with this descriptor.
  uint32_t path_index_of(int descriptor) const;
  const PathBalancer& balancer() const { return space_.balancer(); }
  // The path on which the block lies now; it must have been written.
  uint32_t path_index_of(ChunkId chunk, uint32_t block) const;
  // Whether the block was ever written.
  bool written(ChunkId chunk, uint32_t block) const;

  // --- Reading ---
  // Makes a request for the whole block, which must have been written; the caller adds the callback. Memory
  // is aligned to 4096. The caller must submit every request made here, and end it below once it has
  // completed, failed or not.
  io::Request read_request(ChunkId chunk, uint32_t block, std::span<std::byte> destination);
  // Throws Error(io) for a failed completion, and Error(corrupt) naming file, chunk, offset and both
  // checksums when the bytes differ from those written.
  void end_read(ChunkId chunk, uint32_t block, const io::Request& request, const io::Completion& completion);
  // These are end_read() in two steps, for callers that want the checked bytes in a cache: end_transfer()
  // when the request has completed, verify() when the bytes are needed.
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
  // Takes a slot and the checksum of `source`, which must not change until the write has ended. The caller
  // adds the callback to write.request. Returns false, and does nothing, when no slot is free (snapshots have
  // them).
  bool begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source, Write& write);
  // May be called when the completion is there and end_write() comes later; the balancer then counts the
  // write as over.
  void arrived(Write& write) noexcept;
  enum class WriteEnd : uint8_t { done, again, failed };
  // done: the block has the written bytes, and its previous slot is free unless a snapshot has it. again
  // (never in place): submit write.request once more; it leads to another slot, and the bad one is set aside.
  // failed: the block has its previous bytes, except in place, where they are lost; io_error() says why.
  WriteEnd end_write(Write& write, const io::Completion& completion) noexcept;

  // The Error for a failed transfer: path, offset, bytes, the system's words and an advice.
  Error io_error(const io::Request& request, const io::Completion& completion) const;
  // The path of the request's file, valid for as long as the store lives.
  const std::string& path_of(const io::Request& request) const;

  // --- Snapshots; never in place ---
  // A Snapshot is every block as it was at one moment. Its slots keep their bytes until it goes.
  class Snapshot {
   public:
    Snapshot() = default;
    Snapshot(Snapshot&& other) noexcept;
    Snapshot& operator=(Snapshot&& other) noexcept;
    ~Snapshot();
    // Replaces a block by its newer version: `write` has ended, and no later write of the block has begun.
    void adopt(const Write& write);
    explicit operator bool() const { return store_ != nullptr; }

   private:
    friend class BlockStore;
    Snapshot(BlockStore& store, uint32_t index) : store_(&store), index_(index) {}
    BlockStore* store_ = nullptr;
    uint32_t index_ = 0;
  };
  Snapshot snapshot();
  // Takes the slots of a retained commit, by its position in the constructor's list; once each.
  Snapshot take_retained(size_t position);
  bool written(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const;
  io::Request read_request(const Snapshot& snapshot, ChunkId chunk, uint32_t block,
                           std::span<std::byte> destination);
  void end_read(const Snapshot& snapshot, ChunkId chunk, uint32_t block, const io::Request& request,
                const io::Completion& completion);
  BlockPlace place(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const;
  StoreLayout layout_of(const Snapshot& snapshot) const;

  // Waits until every block written before is durable; it syncs the files that were written since the last
  // call. It fails when a file is no longer found by its name. After a failure it fails for good, because a
  // drive does not report lost writes twice.
  void sync();

  // The slots that writes may take now, and the slots that were set aside.
  uint64_t free_slot_count() const;
  uint64_t bad_slot_count() const;
  // The reason why the last slot was set aside: file and the system's words; empty when none was.
  std::string last_bad_slot() const;
  // Asserts that every slot is free, being written, set aside, or held by exactly the blocks and snapshots
  // that name it.
  void check() const;

 private:
  struct File;  // the file on one path

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
  std::vector<std::unique_ptr<File>> files_;  // by path; null: no file there
  std::vector<uint64_t> first_block_;         // by ChunkId, and one more entry
  mutable Mutex mutex_;
  std::unique_ptr<SlotMap> map_ TERRACE_GUARDED_BY(mutex_);
  uint32_t last_bad_path_ TERRACE_GUARDED_BY(mutex_) = 0;
  int last_bad_error_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> candidates_ TERRACE_GUARDED_BY(mutex_);  // scratch memory of choose_slot()
  std::vector<Snapshot> retained_;
  Mutex sync_mutex_;  // held by sync() alone, which waits
};

}  // namespace terrace
