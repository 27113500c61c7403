// BlockWriter and BlockReader: a file of a saved state, usually from its first byte to its last, in blocks of
// kBlockBytes with a checksum each. They must never hold more than one block, nor return an unchecked byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/function_ref.h>

namespace terrace::saved {

// The unit of checksums. The last block of a file is short.
inline constexpr uint64_t kBlockBytes = 768 * 1024;

struct DataFile {
  uint64_t bytes = 0;
  std::vector<uint64_t> block_checksums;  // xxh3, 64 bit: one per kBlockBytes begun
};

uint64_t block_count(uint64_t bytes);
// One text of the checksums, sixteen digits each, as manifests have it; and back. Returns why the text cannot
// be the checksums of so many bytes, empty where it can.
std::string checksums_text(const DataFile& file);
std::string read_checksums(std::string_view text, DataFile& file);

class BlockWriter {
 public:
  // Creates the file, which must not exist.
  explicit BlockWriter(const std::filesystem::path& path);

  // Takes disk space for the whole file, or throws Error(capacity). Without it a full drive shows while
  // writing.
  void reserve(uint64_t bytes);
  // Call before the first byte: `clone` fills the file, given its descriptor. If it returns true, the bytes
  // written after it must be the same and are only checksummed; else the file is empty again.
  bool take_clone(uint64_t bytes, FunctionRef<bool(int)> clone);
  void write(std::span<const std::byte> bytes);
  // Writes the last block and returns when everything is on the drive. Nothing may be written after it.
  DataFile finish();

 private:
  void write_block();
  void write_back();
  void start_and_wait(uint64_t offset, uint64_t bytes, unsigned flags);
  [[noreturn]] void fail(int error) const;

  io::File file_;
  std::vector<std::byte> block_;
  uint64_t filled_bytes_ = 0;   // bytes in block_
  uint64_t offset_ = 0;         // where block_ begins in the file
  uint64_t started_bytes_ = 0;  // bytes of the file whose write to the drive has started
  uint64_t done_bytes_ = 0;     // bytes of the file that are on the drive and out of the page cache
  bool can_write_back_ = true;
  bool cloned_ = false;
  std::vector<uint64_t> checksums_;
};

class BlockReader {
 public:
  // Throws Error(io) when the file is missing and Error(corrupt) when it is longer or shorter than
  // `expected`.
  BlockReader(const std::filesystem::path& path, DataFile expected);

  // Reads and checks the next bytes. Throws Error(corrupt) naming the block, its offset and both checksums.
  void read(std::span<std::byte> destination);
  // Lets the next read begin at this byte. A block that is in memory is not read again.
  void seek(uint64_t byte);
  bool holds(uint64_t byte) const { return byte < offset_ && byte + block_.size() >= offset_; }
  // Reads and checks every byte that is behind the last read.
  void verify();
  uint64_t bytes() const { return expected_.bytes; }
  bool at_end() const { return offset_ == expected_.bytes && taken_bytes_ == block_.size(); }

 private:
  void read_block();

  io::File file_;
  DataFile expected_;
  std::vector<std::byte> block_;  // checked
  uint64_t taken_bytes_ = 0;      // bytes returned from block_
  uint64_t offset_ = 0;           // where block_ ends in the file
};

}  // namespace terrace::saved
