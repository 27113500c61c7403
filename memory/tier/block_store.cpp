#include <terrace/memory/tier/block_store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/checksum.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/internal/block_store_file.h>
#include <terrace/memory/tier/internal/slot_map.h>

namespace terrace {
namespace {

constexpr uint32_t kMostAttempts = 4;

// Returns true for errors that another slot, perhaps of another path, may not have. A request that makes no
// sense fails in every slot.
bool is_worth_another_slot(int error) {
  constexpr int kErrors[] = {EIO, ENOSPC, EDQUOT, ENODATA, ETIMEDOUT, EREMOTEIO, ENOLINK, EILSEQ};
  return std::ranges::find(kErrors, error) != std::end(kErrors);
}

bool has_none(std::span<const uint64_t> free_slots) {
  return std::ranges::all_of(free_slots, [](uint64_t slots) { return slots == 0; });
}

}  // namespace

BlockStore::~BlockStore() {
  retained_.clear();
  for (const std::unique_ptr<File>& file : files_) {
    if (file != nullptr && options_.in_place && getpid() == owner_) remove_file(*file);
  }
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(map_ == nullptr || map_->open_snapshot_count() == 0,
                 "a snapshot of \"" + options_.name + "\" outlives its store");
}

void BlockStore::number_blocks() {
  TERRACE_ASSERT(options_.block_bytes > 0 && options_.block_bytes % kDirectAlignment == 0 &&
                     options_.block_bytes <= kLargestTierBlockBytes,
                 fmt::format("blocks of {} bytes do not suit direct I/O", options_.block_bytes));
  uint64_t blocks = 0;
  first_block_.reserve(options_.chunk_bytes.size() + 1);
  for (const uint64_t bytes : options_.chunk_bytes) {
    TERRACE_ASSERT(bytes % kDirectAlignment == 0,
                   fmt::format("a chunk of {} bytes does not suit direct I/O", bytes));
    first_block_.push_back(blocks);
    blocks += divide_up(bytes, options_.block_bytes);
  }
  first_block_.push_back(blocks);
}

uint32_t BlockStore::block_count(ChunkId chunk) const {
  return static_cast<uint32_t>(first_block_[index_of(chunk) + 1] - first_block_[index_of(chunk)]);
}

uint64_t BlockStore::block_bytes(ChunkId chunk, uint32_t block) const {
  return std::min(options_.block_bytes, chunk_bytes(chunk) - block * options_.block_bytes);
}

size_t BlockStore::index_of_block(ChunkId chunk, uint32_t block) const {
  TERRACE_ASSERT(index_of(chunk) + 1 < first_block_.size() && block < block_count(chunk),
                 fmt::format("block {} of chunk {} is not in \"{}\"", block, index_of(chunk), options_.name));
  return first_block_[index_of(chunk)] + block;
}

uint32_t BlockStore::path_index_of(ChunkId chunk, uint32_t block) const {
  const size_t index = index_of_block(chunk, block);
  const MutexLock lock(mutex_);
  const uint32_t path = map_->current(index).path;
  TERRACE_ASSERT(path != kNoPath,
                 fmt::format("block {} of chunk {} was never written", block, index_of(chunk)));
  return path;
}

bool BlockStore::written(ChunkId chunk, uint32_t block) const {
  const size_t index = index_of_block(chunk, block);
  const MutexLock lock(mutex_);
  return map_->current(index).path != kNoPath;
}

const BlockStore::File& BlockStore::file_of(int fd) const {
  const auto file =
      std::ranges::find_if(files_, [fd](const auto& f) { return f != nullptr && f->file.fd() == fd; });
  TERRACE_ASSERT(file != files_.end(), "a request of another store");
  return **file;
}

std::vector<int> BlockStore::descriptors() const {
  std::vector<int> descriptors;
  for (const auto& file : files_) {
    if (file != nullptr) descriptors.push_back(file->file.fd());
  }
  return descriptors;
}

uint32_t BlockStore::path_index_of(int descriptor) const {
  return file_of(descriptor).index;
}

const std::string& BlockStore::path_of(const io::Request& request) const {
  return file_of(request.fd).path;
}

void BlockStore::require_direct(ChunkId chunk, uint32_t block, std::span<const std::byte> memory) const {
  TERRACE_ASSERT(memory.size() == block_bytes(chunk, block),
                 fmt::format("{} bytes for block {} of chunk {}, which has {}", memory.size(), block,
                             index_of(chunk), block_bytes(chunk, block)));
  TERRACE_ASSERT(reinterpret_cast<uintptr_t>(memory.data()) % kDirectAlignment == 0,
                 "this memory does not suit direct I/O");
}

io::Request BlockStore::make_request(io::OpKind kind, const StoredBlock& where, std::byte* data,
                                     uint64_t bytes) {
  space_.balancer().started(where.path, bytes);
  return {.kind = kind,
          .fd = files_[where.path]->file.fd(),
          .offset = where.slot * options_.block_bytes,
          .data = data,
          .bytes = bytes,
          .on_complete = nullptr,
          .context = nullptr,
          .tag = 0};
}

io::Request BlockStore::make_read(const StoredBlock& where, ChunkId chunk, uint32_t block,
                                  std::span<std::byte> destination) {
  require_direct(chunk, block, destination);
  TERRACE_ASSERT(where.path != kNoPath,
                 fmt::format("block {} of chunk {} of \"{}\" is read and was never written", block,
                             index_of(chunk), options_.name));
  return make_request(io::OpKind::read, where, destination.data(), destination.size());
}

io::Request BlockStore::read_request(ChunkId chunk, uint32_t block, std::span<std::byte> destination) {
  const size_t index = index_of_block(chunk, block);
  StoredBlock where;
  {
    const MutexLock lock(mutex_);
    where = map_->current(index);
  }
  return make_read(where, chunk, block, destination);
}

void BlockStore::end_read(ChunkId chunk, uint32_t block, const io::Request& request,
                          const io::Completion& completion) {
  end_transfer(request, completion);
  verify(chunk, block, request);
}

void BlockStore::end_transfer(const io::Request& request, const io::Completion& completion) {
  space_.balancer().completed(file_of(request.fd).index, request.bytes);
  if (completion.error != 0) throw io_error(request, completion);
}

void BlockStore::verify(ChunkId chunk, uint32_t block, const io::Request& request) const {
  const size_t index = index_of_block(chunk, block);
  StoredBlock expected;
  {
    const MutexLock lock(mutex_);
    expected = map_->current(index);
  }
  compare(expected, chunk, block, request);
}

void BlockStore::compare(const StoredBlock& expected, ChunkId chunk, uint32_t block,
                         const io::Request& request) const {
  if (!options_.verify || space_.is_dry()) return;
  const uint64_t actual = checksum_of({request.data, request.bytes});
  if (actual == expected.checksum) return;
  throw Error(
      ErrorKind::corrupt,
      {"corrupt data in", path_of(request),
       fmt::format("chunk {}, offset {} ({} in the file), {} bytes: checksum {:#018x}, expected {:#018x}",
                   index_of(chunk), block * options_.block_bytes, request.offset, request.bytes, actual,
                   expected.checksum),
       "the disk lost or changed what was written: resume from a checkpoint"});
}

// In place, the block's own slot is a candidate too; other paths are candidates only if they have spare
// slots. A path on which the write has just failed (kNoPath: none) is the last resort.
bool BlockStore::choose_slot(size_t index, uint64_t bytes, uint32_t failed_path, StoredBlock& to) {
  const StoredBlock& own = map_->current(index);
  const bool may_stay = options_.in_place && own.path != kNoPath;
  const std::span<const uint64_t> free = map_->free_slots();
  candidates_.assign(free.begin(), free.end());
  if (may_stay) ++candidates_[own.path];
  if (has_none(candidates_)) return false;
  if (failed_path != kNoPath) {
    const uint64_t its_own = std::exchange(candidates_[failed_path], 0);
    if (has_none(candidates_)) candidates_[failed_path] = its_own;
  }
  to.path = space_.balancer().choose(candidates_, bytes);
  to.slot = may_stay && to.path == own.path ? own.slot : map_->take(to.path);
  return true;
}

bool BlockStore::lies_in(size_t index, const StoredBlock& where) const {
  const StoredBlock& own = map_->current(index);
  return own.path == where.path && own.slot == where.slot;
}

bool BlockStore::begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source, Write& write) {
  const size_t index = index_of_block(chunk, block);
  require_direct(chunk, block, source);
  if (!options_.in_place) {
    // Free slots are asked for before anything is hashed, because a caller that waits for a slot asks often.
    const MutexLock lock(mutex_);
    if (has_none(map_->free_slots())) return false;
  }
  // Commits name checksums, whether or not this run compares them.
  const bool seals = (options_.verify || !options_.in_place) && !space_.is_dry();
  StoredBlock to{.checksum = seals ? checksum_of(source) : 0};
  {
    const MutexLock lock(mutex_);
    if (!choose_slot(index, source.size(), kNoPath, to)) return false;
    // From now on the earlier bytes of the slot are lost, and their checksum must not pass.
    if (lies_in(index, to)) map_->reseal(index, to.checksum);
  }
  // A request has one kind of address for both directions, but a write only reads there.
  auto* const data = const_cast<std::byte*>(source.data());
  write = {chunk, block, to, 1, make_request(io::OpKind::write, to, data, source.size())};
  return true;
}

void BlockStore::arrived(Write& write) noexcept {
  if (!write.has_arrived) space_.balancer().completed(write.to.path, write.request.bytes);
  write.has_arrived = true;
}

BlockStore::WriteEnd BlockStore::end_write(Write& write, const io::Completion& completion) noexcept {
  const size_t index = index_of_block(write.chunk, write.block);
  arrived(write);
  write.has_arrived = false;  // the write may be submitted again
  File& file = *files_[write.to.path];
  if (completion.error == 0) {
    file.unsynced.store(true);
    const MutexLock lock(mutex_);
    if (!lies_in(index, write.to)) map_->put(index, write.to);
    return WriteEnd::done;
  }
  StoredBlock other = write.to;
  {
    const MutexLock lock(mutex_);
    if (lies_in(index, write.to)) return WriteEnd::failed;
    // In place, a free slot may be the only one of a block that is not written yet.
    if (options_.in_place || !is_worth_another_slot(completion.error)) {
      map_->put_back(write.to);
      return WriteEnd::failed;
    }
    map_->set_aside(write.to);
    last_bad_path_ = write.to.path;
    last_bad_error_ = completion.error;
    if (write.attempts == kMostAttempts || !choose_slot(index, write.request.bytes, write.to.path, other))
      return WriteEnd::failed;
  }
  log_.warning_once(fmt::format(
      "a write to {} failed ({}): its slot is set aside and the block goes to another one, as will others",
      file.path, system_reason(completion.error).text));
  const io::Request moved = make_request(io::OpKind::write, other, write.request.data, write.request.bytes);
  write.to = other;
  ++write.attempts;
  write.request.fd = moved.fd;
  write.request.offset = moved.offset;
  return WriteEnd::again;
}

Error BlockStore::io_error(const io::Request& request, const io::Completion& completion) const {
  const File& file = file_of(request.fd);
  const Error failure = io::describe_failure(request, completion, file.path);
  if (completion.error != ENOSPC && completion.error != EDQUOT) return failure;
  ErrorParts parts = failure.parts();
  try {
    parts.reason += "; " + format_bytes(io::free_bytes_at(file.path)) + " are free";
  } catch (const Error&) {
    // The file system cannot even be asked, and the first failure is the one that matters.
  }
  parts.advice =
      fmt::format("free space on the file system of {}, or set ", space_.folder(file.index).path()) +
      Option::nvme_path + " to a larger disk";
  return Error(failure.kind(), std::move(parts));
}

void BlockStore::sync() {
  if (space_.is_dry()) return;
  const MutexLock lock(sync_mutex_);
  for (const std::unique_ptr<File>& file : files_) {
    if (file == nullptr) continue;
    if (file->lost) {
      throw Error(ErrorKind::io, {"cannot sync the file", file->path,
                                  "an earlier attempt failed, and what was lost then is not known",
                                  "resume from the last commit or checkpoint"});
    }
    file->file.require_named();
    if (!file->unsynced.exchange(false)) continue;
    try {
      file->file.sync();
    } catch (...) {
      file->lost = true;
      throw;
    }
  }
}

uint64_t BlockStore::file_bytes() const {
  uint64_t slots = 0;
  for (const std::unique_ptr<File>& file : files_) slots += file != nullptr ? file->slot_count : 0;
  return slots * options_.block_bytes;
}

uint64_t BlockStore::free_slot_count() const {
  const MutexLock lock(mutex_);
  uint64_t count = 0;
  for (const uint64_t free : map_->free_slots()) count += free;
  return count;
}

std::string BlockStore::last_bad_slot() const {
  const MutexLock lock(mutex_);
  if (last_bad_error_ == 0) return "";
  return files_[last_bad_path_]->path + ": " + system_reason(last_bad_error_);
}

uint64_t BlockStore::bad_slot_count() const {
  const MutexLock lock(mutex_);
  return map_->bad_slots();
}

void BlockStore::check() const {
  const MutexLock lock(mutex_);
  map_->check();
}

}  // namespace terrace
