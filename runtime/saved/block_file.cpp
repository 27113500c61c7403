#include <terrace/runtime/saved/block_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/base/checksum.h>
#include <terrace/base/units.h>
#include <terrace/runtime/saved/sealed_text.h>

namespace terrace::saved {
namespace {

// How much goes to the device at a time, and how much of the page cache a file takes on its way at most,
// twice over.
constexpr uint64_t kWindowBytes = 8 * kMiB;

io::File open_for_reading(const std::filesystem::path& path) {
  try {
    return io::File::open(path, {.access = io::FileAccess::read, .no_follow = false});
  } catch (const Error& failure) {
    throw Error(failure.kind(),
                {"cannot read the checkpoint's file", path.string(), failure.parts().why(),
                 "every file that the manifest names is needed: resume from another checkpoint"});
  }
}

}  // namespace

uint64_t block_count(uint64_t bytes) {
  return bytes / kBlockBytes +
         (bytes % kBlockBytes != 0 ? 1 : 0);  // without overflow: `bytes` may be anything
}

std::string checksums_text(const DataFile& file) {
  std::string text;
  text.reserve(file.block_checksums.size() * kChecksumDigits);
  for (const uint64_t checksum : file.block_checksums) text += hex_text(checksum);
  return text;
}

std::string read_checksums(std::string_view text, DataFile& file) {
  const uint64_t blocks = text.size() / kChecksumDigits;
  if (text.size() % kChecksumDigits != 0 || blocks != block_count(file.bytes))
    return fmt::format("{} characters of checksums do not belong to the {} bytes", text.size(), file.bytes);
  file.block_checksums.resize(blocks);
  for (uint64_t b = 0; b < blocks; ++b) {
    if (!read_hex(text.substr(b * kChecksumDigits, kChecksumDigits), file.block_checksums[b]))
      return fmt::format("not hexadecimal is the checksum of block {}", b);
  }
  return "";
}

BlockWriter::BlockWriter(const std::filesystem::path& path)
    : file_(io::File::open(path, {.access = io::FileAccess::write, .create = true})), block_(kBlockBytes) {}

void BlockWriter::reserve(uint64_t bytes) {
  file_.preallocate(bytes);
}

bool BlockWriter::take_clone(uint64_t bytes, FunctionRef<bool(int)> clone) {
  cloned_ = clone(file_.fd());
  TERRACE_ASSERT(!cloned_ || file_.size_bytes() == bytes,
                 fmt::format("{} of {} bytes were cloned", file_.size_bytes(), bytes));
  if (!cloned_) file_.resize(0);
  return cloned_;
}

void BlockWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min<uint64_t>(bytes.size(), block_.size() - filled_bytes_);
    std::memcpy(block_.data() + filled_bytes_, bytes.data(), count);
    filled_bytes_ += count;
    bytes = bytes.subspan(count);
    if (filled_bytes_ == block_.size()) write_block();
  }
}

DataFile BlockWriter::finish() {
  if (filled_bytes_ > 0) write_block();
  file_.sync();
  posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);  // only a wish: nothing depends on it
  return {offset_, std::move(checksums_)};
}

void BlockWriter::write_block() {
  std::span<const std::byte> left(block_.data(), filled_bytes_);
  checksums_.push_back(checksum_of(left));
  if (cloned_) {
    offset_ += left.size();
    left = {};
  }
  while (!left.empty()) {
    const ssize_t written = pwrite(file_.fd(), left.data(), left.size(), static_cast<off_t>(offset_));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(written < 0 ? errno : EIO);
    offset_ += static_cast<uint64_t>(written);
    left = left.subspan(static_cast<size_t>(written));
  }
  filled_bytes_ = 0;
  if (!cloned_) write_back();
}

// Keeps the device busy while the next blocks are made, and the page cache free of what nobody reads soon.
void BlockWriter::write_back() {
  if (!can_write_back_ || offset_ - started_bytes_ < kWindowBytes) return;
  start_and_wait(started_bytes_, offset_ - started_bytes_, SYNC_FILE_RANGE_WRITE);
  if (started_bytes_ > done_bytes_) {
    start_and_wait(done_bytes_, started_bytes_ - done_bytes_,
                   SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(file_.fd(), static_cast<off_t>(done_bytes_),
                  static_cast<off_t>(started_bytes_ - done_bytes_), POSIX_FADV_DONTNEED);
  }
  done_bytes_ = started_bytes_;
  started_bytes_ = offset_;
}

// An error of the device shows here once and not again in sync().
void BlockWriter::start_and_wait(uint64_t offset, uint64_t bytes, unsigned flags) {
  int result;
  do {
    result = sync_file_range(file_.fd(), static_cast<off_t>(offset), static_cast<off_t>(bytes), flags);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP && errno != ESPIPE) fail(errno);
  can_write_back_ = false;  // this file system leaves it all to sync()
}

void BlockWriter::fail(int error) const {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorKind::capacity : ErrorKind::io,
              {fmt::format("cannot write at offset {} of the checkpoint's file", offset_),
               file_.path().string(), system_reason(error),
               full ? "free some space, for example remove older checkpoints; the checkpoint was given up, "
                      "earlier ones "
                      "are as they were"
                    : "the checkpoint was given up, earlier ones are as they were"});
}

BlockReader::BlockReader(const std::filesystem::path& path, DataFile expected)
    : file_(open_for_reading(path)), expected_(std::move(expected)) {
  TERRACE_ASSERT(expected_.block_checksums.size() == block_count(expected_.bytes),
                 fmt::format("{} checksums for {} bytes", expected_.block_checksums.size(), expected_.bytes));
  const uint64_t bytes = file_.size_bytes();
  if (bytes != expected_.bytes) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the checkpoint's file", path.string(),
                 fmt::format("it has {} bytes and the manifest says {}", bytes, expected_.bytes),
                 "it was cut off or changed after it was saved: resume from another checkpoint"});
  }
  block_.reserve(std::min(kBlockBytes, bytes));
  posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void BlockReader::read(std::span<std::byte> destination) {
  while (!destination.empty()) {
    if (taken_bytes_ == block_.size()) read_block();
    const size_t count = std::min<uint64_t>(destination.size(), block_.size() - taken_bytes_);
    std::memcpy(destination.data(), block_.data() + taken_bytes_, count);
    taken_bytes_ += count;
    destination = destination.subspan(count);
  }
}

void BlockReader::seek(uint64_t byte) {
  TERRACE_ASSERT(byte < expected_.bytes, fmt::format("byte {} of {}", byte, expected_.bytes));
  if (!holds(byte)) {
    offset_ = byte / kBlockBytes * kBlockBytes;
    read_block();
  }
  taken_bytes_ = byte - (offset_ - block_.size());
}

void BlockReader::verify() {
  while (offset_ < expected_.bytes) read_block();
  taken_bytes_ = block_.size();
}

void BlockReader::read_block() {
  TERRACE_ASSERT(offset_ < expected_.bytes, "read beyond the end of " + file_.path().string());
  const uint64_t begin = offset_;
  const uint64_t index = begin / kBlockBytes;
  block_.resize(std::min(kBlockBytes, expected_.bytes - begin));
  taken_bytes_ = block_.size();  // nothing of it is given out unless all of it is good
  const auto refuse = [&](ErrorKind kind, const Reason& reason) {
    throw Error(
        kind,
        {"cannot use the checkpoint's file", file_.path().string(),
         fmt::format("block {} ({} bytes at offset {}): ", index, block_.size(), begin) + reason,
         "check the disk and use another checkpoint; a training state that was being loaded from this one is "
         "not whole"});
  };
  for (size_t filled = 0; filled < block_.size();) {
    const ssize_t moved =
        pread(file_.fd(), block_.data() + filled, block_.size() - filled, static_cast<off_t>(begin + filled));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) refuse(ErrorKind::io, system_reason(errno));
    if (moved == 0) refuse(ErrorKind::corrupt, "the file became shorter meanwhile");
    filled += static_cast<size_t>(moved);
  }
  const uint64_t found = checksum_of(block_);
  const uint64_t expected = expected_.block_checksums[index];
  if (found != expected)
    refuse(ErrorKind::corrupt,
           fmt::format("its checksum is {} and the manifest says {}", hex_text(found), hex_text(expected)));
  offset_ = begin + block_.size();
  taken_bytes_ = 0;
  posix_fadvise(file_.fd(), static_cast<off_t>(begin), static_cast<off_t>(block_.size()),
                POSIX_FADV_DONTNEED);
}

}  // namespace terrace::saved
