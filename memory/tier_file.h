// TierFile: a pool of equal slots in one file of a tier folder, with a checksum per block kept in memory (a
// lost write must not pass with its old checksum). It makes requests and checks bytes; it must never submit a
// transfer of a chunk itself: when that happens is the caller's decision.
//
// Layout of the file: slot s at byte s * slot_bytes; chunk c lies at the beginning of slot slot_of(c). Blocks
// are cut from the beginning of a chunk, the last one short. Behind the slots is the mark by which the next
// job knows the file (TierFolder::mark()), and nothing else. The file lives as long as the job.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/log.h>
#include <terrace/memory/tensor.h>
#include <terrace/memory/tier_folder.h>

namespace terrace {

namespace io {
class Engine;
class File;
struct Completion;
struct Request;
enum class OpKind : uint8_t;
}  // namespace io

struct TierFileOptions {
  std::string name;          // "records", "params"
  uint64_t slot_bytes = 0;   // a multiple of 4096
  uint64_t block_bytes = 0;  // a multiple of 4096
  // By ChunkId; multiples of 4096, at most slot_bytes; 0: this chunk is not here.
  std::vector<uint64_t> chunk_bytes;
  bool verify = true;  // checksums are made and compared
};

// Requests, seals and checks of distinct blocks may come from different threads at once; those of one block
// must be ordered by the caller.
class TierFile {
 public:
  // Creates the file (0600, it must not exist), reserves its space and writes all of it once, because fresh
  // space is slower to write. Waits for that, on the thread that owns the engine. Throws Error(capacity) when
  // the space is not there and Error(io) otherwise.
  TierFile(TierFolder& folder, TierFileOptions options, io::Engine& engine, Log& log);
  ~TierFile();
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const;
  uint64_t block_bytes() const { return options_.block_bytes; }
  uint64_t chunk_bytes(ChunkId chunk) const { return options_.chunk_bytes[index_of(chunk)]; }
  bool verifies() const { return options_.verify; }

  // A request for these bytes of the chunk; the caller adds the callback. `offset`, size and address must
  // suit direct I/O (multiples of 4096). Every block a read touches must have been sealed.
  io::Request read_request(ChunkId chunk, uint64_t offset, std::span<std::byte> destination);
  io::Request write_request(ChunkId chunk, uint64_t offset, std::span<const std::byte> source);

  // Records what whole blocks are going to hold, before they are written. `offset` begins a block and `bytes`
  // ends with one.
  void seal(ChunkId chunk, uint64_t offset, std::span<const std::byte> bytes);
  // Compares whole blocks that were read with what was sealed. Throws Error(corrupt) naming file, chunk,
  // offset and both checksums. Does nothing when checksums are off.
  void check(ChunkId chunk, uint64_t offset, std::span<const std::byte> bytes) const;
  // Whether the chunk's block at `offset` has ever been sealed.
  bool sealed(ChunkId chunk, uint64_t offset) const;

  // What went wrong with a transfer: path, offset, bytes, the system's words and what to do.
  Error io_error(const io::Request& request, const io::Completion& completion) const;

  // Sizes of the requests made here, whether or not they were submitted.
  uint64_t requested_read_bytes() const { return requested_read_bytes_.load(std::memory_order_relaxed); }
  uint64_t requested_write_bytes() const { return requested_write_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNoSlot = std::numeric_limits<uint32_t>::max();

  void write_mark();
  void write_zeros(io::Engine& engine);
  uint64_t file_offset(ChunkId chunk, uint64_t offset, uint64_t bytes) const;
  size_t block_index(ChunkId chunk, uint64_t offset) const;
  io::Request make_request(io::OpKind kind, uint64_t position, std::byte* data, uint64_t bytes) const;
  void require_direct(uint64_t offset, std::span<const std::byte> memory) const;
  void require_whole_blocks(ChunkId chunk, uint64_t offset, uint64_t bytes) const;

  const TierFolder& folder_;
  const TierFileOptions options_;
  std::string path_;
  const pid_t owner_ = getpid();  // a forked child must not remove the file
  std::unique_ptr<io::File> file_;
  std::vector<uint32_t> slot_of_;  // by ChunkId
  uint32_t slot_count_ = 0;
  std::vector<size_t> first_block_;  // by ChunkId: its first entry in the two vectors below
  std::vector<uint64_t> checksums_;  // xxh3, 64 bit
  std::vector<uint8_t> block_is_sealed_;
  std::atomic<uint64_t> requested_read_bytes_{0};
  std::atomic<uint64_t> requested_write_bytes_{0};
};

}  // namespace terrace
