#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include <terrace/aio/engine.h>
#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/memory/pages.h>
#include <terrace/memory/tier_file.h>

namespace terrace {
namespace {

constexpr uint64_t kDirectAlignment = 4096;

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hex_text(uint64_t value) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof text, "0x%016" PRIx64, value);
  return text;
}

// The writes of zeros in flight.
struct ZeroWrites {
  uint64_t completed = 0;
  io::Completion first_failure{};
};

void on_zeros_written(void* context, const io::Completion& completion) noexcept {
  auto& writes = *static_cast<ZeroWrites*>(context);
  ++writes.completed;
  if (completion.error != 0 && writes.first_failure.error == 0) writes.first_failure = completion;
}

}  // namespace

TierFile::TierFile(TierFolder& folder, TierFileOptions options, io::Engine& engine, Log& log)
    : folder_(folder), options_(std::move(options)), path_(folder.file_path(options_.name)) {
  TERRACE_ASSERT(options_.slot_bytes > 0 && options_.slot_bytes % kDirectAlignment == 0,
                 "slots of " + std::to_string(options_.slot_bytes) + " bytes do not suit direct I/O");
  TERRACE_ASSERT(options_.block_bytes > 0 && options_.block_bytes % kDirectAlignment == 0,
                 "blocks of " + std::to_string(options_.block_bytes) + " bytes do not suit direct I/O");
  size_t block_count = 0;
  for (const uint64_t bytes : options_.chunk_bytes) {
    TERRACE_ASSERT(bytes % kDirectAlignment == 0 && bytes <= options_.slot_bytes,
                   "a chunk of " + std::to_string(bytes) + " bytes does not suit slots of " +
                       std::to_string(options_.slot_bytes));
    slot_of_.push_back(bytes > 0 ? slot_count_++ : kNoSlot);
    first_block_.push_back(block_count);
    block_count += divide_up(bytes, options_.block_bytes);
  }
  checksums_.resize(block_count);
  block_is_sealed_.resize(block_count);

  folder.require_free(file_bytes() + TierFolder::kMarkBytes, "the tier file \"" + options_.name + "\"");
  file_ = std::make_unique<io::File>(
      io::File::open(path_, {.access = io::FileAccess::read_write, .create = true, .direct = true}));
  try {
    if (!file_->direct()) {
      log.warning_once(path_ + " goes through the page cache (" + file_->direct_refusal() +
                       "): slower, and the cache takes memory that no budget counts" +
                       (engine.kind() == io::EngineKind::libaio
                            ? "; the engine libaio waits for every transfer of such a file, threads does not"
                            : ""));
    }
    TERRACE_ASSERT(
        kDirectAlignment % file_->alignment_bytes() == 0,
        "direct I/O on " + path_ + " wants multiples of " + std::to_string(file_->alignment_bytes()));
    write_mark();
    file_->preallocate(file_bytes() + TierFolder::kMarkBytes);
    write_zeros(engine);
  } catch (...) {
    unlink(path_.c_str());  // so that its space is free again while the error is dealt with
    throw;
  }
}

// By name and not by its mark: whatever happened to its bytes, this job made it.
TierFile::~TierFile() {
  struct stat mine, there;
  if (getpid() == owner_ && fstat(file_->fd(), &mine) == 0 && lstat(path_.c_str(), &there) == 0 &&
      mine.st_dev == there.st_dev && mine.st_ino == there.st_ino) {
    unlink(path_.c_str());
  }
}

uint64_t TierFile::file_bytes() const {
  return slot_count_ * options_.slot_bytes;
}

// Behind the last slot, and first of all: a job that dies later leaves a file that the next one knows.
void TierFile::write_mark() {
  const std::span<const std::byte> mark = TierFolder::mark();
  const ssize_t written = pwrite(file_->fd(), mark.data(), mark.size(), static_cast<off_t>(file_bytes()));
  if (written == static_cast<ssize_t>(mark.size())) return;
  const int error = written < 0 ? errno : ENOSPC;
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorKind::capacity : ErrorKind::io,
              {"cannot write to the tier file", path_, system_reason(error),
               full ? "free some space there, or set nvme_path to a larger disk" : ""});
}

// All writes take their zeros from the same small buffer, which stays in the cache and in no budget's way.
void TierFile::write_zeros(io::Engine& engine) {
  constexpr uint64_t kWriteBytes = kMiB;
  constexpr uint64_t kWritesInFlight = 16;
  const PageMapping zeros = PageMapping::populated(kWriteBytes, false, "zeros for a tier file");
  ZeroWrites writes;
  uint64_t submitted = 0;
  uint64_t offset = 0;
  const auto request_at = [&](uint64_t at) {
    return io::Request{.kind = io::OpKind::write,
                       .fd = file_->fd(),
                       .offset = at,
                       .data = zeros.memory().data(),
                       .bytes = std::min(kWriteBytes, file_bytes() - at),
                       .on_complete = on_zeros_written,
                       .context = &writes,
                       .tag = at};
  };
  while (offset < file_bytes() || writes.completed < submitted) {
    while (offset < file_bytes() && submitted - writes.completed < kWritesInFlight) {
      const io::Request request = request_at(offset);
      engine.submit({&request, 1});
      offset += request.bytes;
      ++submitted;
    }
    if (writes.first_failure.error != 0) offset = file_bytes();  // no more; those in flight still use `zeros`
    if (writes.completed < submitted) engine.wait(1);
  }
  if (writes.first_failure.error == 0) return;
  throw io_error(request_at(writes.first_failure.tag), writes.first_failure);
}

uint64_t TierFile::file_offset(ChunkId chunk, uint64_t offset, uint64_t bytes) const {
  TERRACE_ASSERT(index_of(chunk) < slot_of_.size() && slot_of_[index_of(chunk)] != kNoSlot,
                 "chunk " + std::to_string(index_of(chunk)) + " is not in " + path_);
  TERRACE_ASSERT(bytes > 0 && offset <= chunk_bytes(chunk) && bytes <= chunk_bytes(chunk) - offset,
                 "bytes " + std::to_string(offset) + " + " + std::to_string(bytes) + " are not in chunk " +
                     std::to_string(index_of(chunk)) + " of " + std::to_string(chunk_bytes(chunk)));
  return slot_of_[index_of(chunk)] * options_.slot_bytes + offset;
}

size_t TierFile::block_index(ChunkId chunk, uint64_t offset) const {
  return first_block_[index_of(chunk)] + offset / options_.block_bytes;
}

void TierFile::require_direct(uint64_t offset, std::span<const std::byte> memory) const {
  const bool fits = offset % kDirectAlignment == 0 && memory.size() % kDirectAlignment == 0 &&
                    reinterpret_cast<uintptr_t>(memory.data()) % kDirectAlignment == 0;
  TERRACE_ASSERT(fits, std::to_string(memory.size()) + " bytes at offset " + std::to_string(offset) +
                           " do not suit direct I/O");
}

void TierFile::require_whole_blocks(ChunkId chunk, uint64_t offset, uint64_t bytes) const {
  file_offset(chunk, offset, bytes);
  const uint64_t end = offset + bytes;
  TERRACE_ASSERT(
      offset % options_.block_bytes == 0 && (end % options_.block_bytes == 0 || end == chunk_bytes(chunk)),
      "bytes " + std::to_string(offset) + " + " + std::to_string(bytes) + " are not whole blocks of " +
          std::to_string(options_.block_bytes));
}

io::Request TierFile::read_request(ChunkId chunk, uint64_t offset, std::span<std::byte> destination) {
  const uint64_t position = file_offset(chunk, offset, destination.size());
  require_direct(offset, destination);
  const size_t last = block_index(chunk, offset + destination.size() - 1);
  for (size_t block = block_index(chunk, offset); block <= last; ++block) {
    TERRACE_ASSERT(block_is_sealed_[block] != 0, "chunk " + std::to_string(index_of(chunk)) + " of " + path_ +
                                                     " is read at offset " + std::to_string(offset) +
                                                     ", where nothing was ever written");
  }
  requested_read_bytes_.fetch_add(destination.size(), std::memory_order_relaxed);
  return make_request(io::OpKind::read, position, destination.data(), destination.size());
}

io::Request TierFile::write_request(ChunkId chunk, uint64_t offset, std::span<const std::byte> source) {
  const uint64_t position = file_offset(chunk, offset, source.size());
  require_direct(offset, source);
  requested_write_bytes_.fetch_add(source.size(), std::memory_order_relaxed);
  // A request has one kind of address for both directions; a write only reads there.
  return make_request(io::OpKind::write, position, const_cast<std::byte*>(source.data()), source.size());
}

io::Request TierFile::make_request(io::OpKind kind, uint64_t position, std::byte* data,
                                   uint64_t bytes) const {
  return {.kind = kind,
          .fd = file_->fd(),
          .offset = position,
          .data = data,
          .bytes = bytes,
          .on_complete = nullptr,
          .context = nullptr,
          .tag = 0};
}

void TierFile::seal(ChunkId chunk, uint64_t offset, std::span<const std::byte> bytes) {
  require_whole_blocks(chunk, offset, bytes.size());
  for (size_t block = block_index(chunk, offset); !bytes.empty(); ++block) {
    const auto piece = bytes.first(std::min<uint64_t>(options_.block_bytes, bytes.size()));
    if (options_.verify) checksums_[block] = checksum_of(piece);
    block_is_sealed_[block] = 1;
    bytes = bytes.subspan(piece.size());
  }
}

void TierFile::check(ChunkId chunk, uint64_t offset, std::span<const std::byte> bytes) const {
  require_whole_blocks(chunk, offset, bytes.size());
  if (!options_.verify) return;
  for (size_t block = block_index(chunk, offset); !bytes.empty(); ++block) {
    const auto piece = bytes.first(std::min<uint64_t>(options_.block_bytes, bytes.size()));
    TERRACE_ASSERT(block_is_sealed_[block] != 0, "a block of chunk " + std::to_string(index_of(chunk)) +
                                                     " of " + path_ + " is checked, but was never written");
    const uint64_t found = checksum_of(piece);
    if (found != checksums_[block]) {
      throw Error(ErrorKind::corrupt,
                  {"the bytes read are not the bytes written in", path_,
                   "chunk " + std::to_string(index_of(chunk)) + ", offset " + std::to_string(offset) + " (" +
                       std::to_string(file_offset(chunk, offset, piece.size())) + " in the file), " +
                       std::to_string(piece.size()) + " bytes: checksum " + hex_text(found) + ", expected " +
                       hex_text(checksums_[block]),
                   "check the drive and the memory of this machine, then resume from the last checkpoint"});
    }
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

bool TierFile::sealed(ChunkId chunk, uint64_t offset) const {
  file_offset(chunk, offset, 1);
  return block_is_sealed_[block_index(chunk, offset)] != 0;
}

Error TierFile::io_error(const io::Request& request, const io::Completion& completion) const {
  const Error failure = io::describe_failure(request, completion, path_);
  if (completion.error != ENOSPC && completion.error != EDQUOT) return failure;
  ErrorParts parts = failure.parts();
  try {
    parts.reason += "; " + format_bytes(folder_.free_bytes()) + " are free";
  } catch (const Error&) {
    // The file system cannot even be asked; what failed first is what matters.
  }
  parts.advice = "free space on the file system of " + folder_.path() + ", or set nvme_path to a larger disk";
  return Error(failure.kind(), std::move(parts));
}

}  // namespace terrace
