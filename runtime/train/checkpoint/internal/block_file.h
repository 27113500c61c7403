// BlockWriter and BlockReader: a data file of a checkpoint, as a rule from its first byte to its last, in
// blocks of kBlockBytes with a checksum each. They must never hold more than one block, nor let a byte out
// that has not been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/function_ref.h>
#include <terrace/runtime/train/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {

class BlockWriter {
 public:
  // Creates the file, which must not exist.
  explicit BlockWriter(const std::filesystem::path& path);

  // Takes disk space for all of the file, or throws Error(capacity). Without it a full disk shows while
  // writing.
  void reserve(uint64_t bytes);
  // Before the first byte: has `clone` make the file, given its descriptor, what it shall hold. Where that
  // returns true, what is written must be those bytes, and only makes the checksums; else the file is empty
  // again.
  bool take_clone(uint64_t bytes, FunctionRef<bool(int)> clone);
  void write(std::span<const std::byte> bytes);
  // Writes the last block and returns when everything is on the device. Nothing may be written after it.
  DataFile finish();

 private:
  void write_block();
  void write_back();
  void start_and_wait(uint64_t offset, uint64_t bytes, unsigned flags);
  [[noreturn]] void fail(int error) const;

  io::File file_;
  std::vector<std::byte> block_;
  uint64_t filled_bytes_ = 0;   // of block_
  uint64_t offset_ = 0;         // in the file, of block_
  uint64_t started_bytes_ = 0;  // of the file: their way to the device has begun
  uint64_t done_bytes_ = 0;     // of the file: on the device and out of the page cache
  bool can_write_back_ = true;
  bool cloned_ = false;
  std::vector<uint64_t> checksums_;
};

class BlockReader {
 public:
  // Throws Error(io) when the file is missing and Error(corrupt) when it is longer or shorter than
  // `expected`.
  BlockReader(const std::filesystem::path& path, DataFile expected);

  // The next bytes, checked. Throws Error(corrupt) naming the block, its offset and both checksums.
  void read(std::span<std::byte> destination);
  // The next read begins at this byte. A block that is in memory is not read again.
  void seek(uint64_t byte);
  bool holds(uint64_t byte) const { return byte < offset_ && byte + block_.size() >= offset_; }
  bool at_end() const { return offset_ == expected_.bytes && taken_bytes_ == block_.size(); }

 private:
  void read_block();

  io::File file_;
  DataFile expected_;
  std::vector<std::byte> block_;  // checked
  uint64_t taken_bytes_ = 0;      // of block_
  uint64_t offset_ = 0;           // in the file, behind block_
};

}  // namespace terrace::checkpoint
