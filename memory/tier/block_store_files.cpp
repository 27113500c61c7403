// The part of BlockStore that makes its files and opens them as a commit left them.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <limits>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/assert.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/internal/block_store_file.h>
#include <terrace/memory/tier/internal/slot_map.h>
#include <terrace/memory/tier/internal/tier_files.h>

namespace terrace {
namespace {

constexpr uint64_t kAnyBytes = uint64_t{1} << 60;  // the free bytes in a plan, which asks no drive

// ZeroWrites counts the writes of zeros.
struct ZeroWrites {
  uint64_t completed = 0;
  io::Completion first_failure{};
};

void on_zeros_written(void* context, const io::Completion& completion) noexcept {
  auto& writes = *static_cast<ZeroWrites*>(context);
  ++writes.completed;
  if (completion.error != 0 && writes.first_failure.error == 0) writes.first_failure = completion;
}

// Writes the mark, which lies behind the last slot.
void write_mark(const io::File& file, uint64_t offset, io::FileEvents* events) {
  const std::span<const std::byte> mark = TierFolder::mark();
  const ssize_t written = pwrite(file.fd(), mark.data(), mark.size(), static_cast<off_t>(offset));
  if (written != static_cast<ssize_t>(mark.size())) {
    const int error = written < 0 ? errno : ENOSPC;
    const bool full = error == ENOSPC || error == EDQUOT;
    throw Error(
        full ? ErrorKind::capacity : ErrorKind::io,
        {"cannot write to the tier file", file.path().string(), system_reason(error),
         full ? "free some space there, or set " + Option::nvme_path + " to a larger disk" : Wording()});
  }
  if (events != nullptr) events->written(file.path(), offset, mark);
}

bool has_mark(const io::File& file, uint64_t offset) {
  struct alignas(kDirectAlignment) Block {
    std::array<std::byte, TierFolder::kMarkBytes> bytes;
  } block;
  return pread(file.fd(), block.bytes.data(), block.bytes.size(), static_cast<off_t>(offset)) ==
             static_cast<ssize_t>(block.bytes.size()) &&
         std::ranges::equal(block.bytes, TierFolder::mark());
}

void warn_of_page_cache(const io::File& file, const io::Engine* engine, Log& log) {
  if (file.direct()) return;
  const bool libaio = engine != nullptr && engine->kind() == io::EngineKind::libaio;
  log.warning_once(fmt::format(
      "{} goes through the page cache ({}): slower, and the cache takes memory that no budget "
      "counts{}",
      file.path().string(), file.direct_refusal(),
      libaio ? "; the engine libaio waits for every transfer of such a file, threads does not" : ""));
}

// Cuts `shares` down to a sum of `allowed`, each in proportion to its size.
void cut_shares(std::vector<uint64_t>& shares, uint64_t allowed) {
  uint64_t sum = 0;
  for (const uint64_t share : shares) sum += share;
  if (sum <= allowed) return;
  const uint64_t excess = sum - allowed;
  uint64_t left = excess;
  for (uint64_t& share : shares) {
    const auto part = static_cast<double>(share) / static_cast<double>(sum) * static_cast<double>(excess);
    const uint64_t cut = std::min({share, left, static_cast<uint64_t>(std::ceil(part))});
    share -= cut;
    left -= cut;
  }
}

void require_alignment(const io::File& file) {
  TERRACE_ASSERT(
      kDirectAlignment % file.alignment_bytes() == 0,
      fmt::format("direct I/O on {} wants multiples of {}", file.path().string(), file.alignment_bytes()));
}

}  // namespace

BlockStore::BlockStore(TierSpace& space, BlockStoreOptions options, io::Engine& engine, Log& log)
    : space_(space), options_(std::move(options)), log_(log), files_(space.path_count()) {
  number_blocks();
  const std::vector<uint32_t> counts = share_out({});
  uint64_t slots = 0;
  for (const uint32_t count : counts) slots += count;
  try {
    for (uint32_t p = 0; p < counts.size(); ++p) {
      if (counts[p] > 0) create_file(p, counts[p], engine);
    }
    for (const std::unique_ptr<File>& file : files_) {
      if (file == nullptr || space.is_dry()) continue;
      // The first writes take the first slots, so this path's share of them needs no zeros.
      const uint64_t reached = divide_up(first_block_.back() * file->slot_count, slots);
      write_zeros(engine, *file, std::min<uint64_t>(reached, file->slot_count));
    }
  } catch (...) {
    // The files go at once, so that their space is free while the error is handled.
    for (const std::unique_ptr<File>& file : files_) {
      if (file != nullptr) remove_file(*file);
    }
    throw;
  }
  map_ = std::make_unique<SlotMap>(counts, first_block_.back());
  candidates_.reserve(counts.size());
}

// Returns the number of slots by path of the space, for all blocks and the spare ones. `there` are the slots
// of files that exist; it is empty if there are none.
std::vector<uint32_t> BlockStore::share_out(std::span<const uint32_t> there) const {
  const uint64_t wanted = first_block_.back() + options_.spare_slots;
  std::vector<uint32_t> paths;
  std::vector<double> rates;
  std::vector<uint64_t> most;
  for (uint32_t p = 0; p < space_.path_count(); ++p) {
    const bool named = options_.paths.empty() || std::ranges::find(options_.paths, p) != options_.paths.end();
    if (there.empty() ? !named : there[p] == 0) continue;
    paths.push_back(p);
    rates.push_back(space_.paths()[p].bytes_per_second);
    const uint64_t free = space_.is_dry() ? kAnyBytes : space_.folder(p).free_bytes();
    const uint64_t fitting =
        free > TierFolder::kMarkBytes ? (free - TierFolder::kMarkBytes) / options_.block_bytes : 0;
    most.push_back(fitting + (there.empty() ? 0 : there[p]));
  }
  TERRACE_ASSERT(!paths.empty(), "no path of the space holds the slots of \"" + options_.name + "\"");
  std::vector<uint32_t> counts(space_.path_count(), 0);
  std::ranges::copy(there, counts.begin());
  if (wanted == 0) return counts;
  // A single path is asked for all of it, so that the error about it has its numbers.
  std::vector<uint64_t> shares =
      paths.size() == 1 ? std::vector<uint64_t>{wanted} : share_slots(wanted, rates, most);
  if (paths.size() > 1) {
    uint64_t fitting = 0;
    for (const uint64_t slots : most) fitting += slots;
    const uint64_t left = divide_up(options_.leave_bytes, options_.block_bytes);
    cut_shares(shares, std::max(wanted, fitting - std::min(fitting, left)));
  }
  uint64_t sum = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    TERRACE_ASSERT(shares[s] < std::numeric_limits<uint32_t>::max(), "more slots than a file can have");
    counts[paths[s]] = std::max(counts[paths[s]], static_cast<uint32_t>(shares[s]));
    sum += counts[paths[s]];
  }
  if (sum >= wanted) return counts;
  const uint64_t missing = (wanted - sum) * options_.block_bytes;
  throw Error(
      ErrorKind::capacity,
      {fmt::format("there is no room for the tier files \"{}\" in", options_.name),
       space_.folder(paths.front()).path(),
       fmt::format("{} bytes ({}) are needed on its paths, {} more than are free there",
                   wanted * options_.block_bytes, format_bytes(wanted * options_.block_bytes), missing),
       "free " + format_bytes(missing) + " there, or set " + Option::nvme_path +
           " to a folder on a larger drive"});
}

// The file gets its name only when its mark is on the drive, so a file with that name and no mark is no file
// of a tier.
void BlockStore::create_file(uint32_t path, uint32_t slot_count, const io::Engine& engine) {
  if (space_.is_dry()) {
    files_[path] = std::make_unique<File>(
        io::File::without_file(space_.paths()[path].path / tier::blocks_file_name(options_.name)), path,
        slot_count);
    return;
  }
  TierFolder& folder = space_.folder(path);
  const uint64_t slot_bytes = slot_count * options_.block_bytes;
  folder.require_free(slot_bytes + TierFolder::kMarkBytes, "the tier file \"" + options_.name + "\"");
  const std::string name = folder.file_path(options_.name);
  files_[path] = std::make_unique<File>(
      io::File::open(
          name + std::string(tier::kAsideSuffix),
          {.access = io::FileAccess::read_write, .create = true, .direct = true, .events = space_.events()}),
      path, slot_count);
  io::File& file = files_[path]->file;
  warn_of_page_cache(file, &engine, log_);
  require_alignment(file);
  write_mark(file, slot_bytes, space_.events());
  file.preallocate(slot_bytes + TierFolder::kMarkBytes);
  file.sync();
  file.rename(name);
  files_[path]->path = name;
  io::sync_folder(folder.path(), space_.events());
}

// The file is recognised by its inode and not by its mark: whatever happened to its bytes, this job made it.
void BlockStore::remove_file(const File& file) const noexcept {
  struct stat mine, there;
  if (fstat(file.file.fd(), &mine) != 0 || lstat(file.path.c_str(), &there) != 0 ||
      mine.st_dev != there.st_dev || mine.st_ino != there.st_ino)
    return;
  if (unlink(file.path.c_str()) == 0 && space_.events() != nullptr) space_.events()->removed(file.path);
}

// All writes take their zeros from the same small buffer, which stays in the processor's cache and outside
// every budget.
void BlockStore::write_zeros(io::Engine& engine, const File& file, uint64_t first_slot) {
  constexpr uint64_t kWriteBytes = kMiB;
  constexpr uint64_t kWritesInFlight = 16;
  const uint64_t end = file.slot_count * options_.block_bytes;
  uint64_t offset = first_slot * options_.block_bytes;
  if (offset == end) return;
  const PageMapping zeros = PageMapping::populated(kWriteBytes, false, "zeros for a tier file");
  ZeroWrites writes;
  uint64_t submitted = 0;
  const auto request_at = [&](uint64_t at) {
    return io::Request{.kind = io::OpKind::write,
                       .fd = file.file.fd(),
                       .offset = at,
                       .data = zeros.memory().data(),
                       .bytes = std::min(kWriteBytes, end - at),
                       .on_complete = on_zeros_written,
                       .context = &writes,
                       .tag = at};
  };
  while (offset < end || writes.completed < submitted) {
    while (offset < end && submitted - writes.completed < kWritesInFlight) {
      const io::Request request = request_at(offset);
      engine.submit({&request, 1});
      offset += request.bytes;
      ++submitted;
    }
    if (writes.first_failure.error != 0) offset = end;  // the writes in flight still use `zeros`
    if (writes.completed < submitted) engine.wait(1);
  }
  if (writes.first_failure.error == 0) return;
  throw io_error(request_at(writes.first_failure.tag), writes.first_failure);
}

BlockStore::BlockStore(TierSpace& space, BlockStoreOptions options, const StoreLayout& commit,
                       std::span<const StoreLayout> retained, Log& log)
    : space_(space), options_(std::move(options)), log_(log), files_(space.path_count()) {
  TERRACE_ASSERT(!options_.in_place, "a commit is never written over in place");
  number_blocks();
  std::vector<const StoreLayout*> layouts{&commit};
  for (const StoreLayout& layout : retained) layouts.push_back(&layout);
  std::vector<uint32_t> counts(space.path_count(), 0);
  for (const StoreLayout* layout : layouts) {
    require_layout(*layout);
    for (size_t p = 0; p < counts.size(); ++p) counts[p] = std::max(counts[p], layout->slot_counts[p]);
  }
  uint64_t slots = 0;
  for (const uint32_t count : counts) slots += count;
  // A run that wants more spare slots than the earlier run gets them; a run that wants fewer keeps those that
  // are there.
  if (slots < first_block_.back() + options_.spare_slots) counts = share_out(counts);
  for (uint32_t p = 0; p < counts.size(); ++p) {
    if (counts[p] > 0) counts[p] = open_file(p, counts[p]);
  }
  map_ = std::make_unique<SlotMap>(counts, first_block_.back());
  candidates_.reserve(counts.size());
  map_->restore(commit.blocks);
  for (const StoreLayout& layout : retained)
    retained_.push_back(Snapshot(*this, map_->open_snapshot(layout.blocks)));
}

void BlockStore::require_layout(const StoreLayout& layout) const {
  const bool fits = layout.name == options_.name && layout.block_bytes == options_.block_bytes &&
                    layout.chunk_bytes == options_.chunk_bytes &&
                    layout.slot_counts.size() == space_.path_count() &&
                    layout.blocks.size() == first_block_.back();
  if (fits) return;
  std::string reason = fmt::format(
      "its store \"{}\" has {} blocks of {} bytes in {} chunks on {} paths, and this run "
      "has {} blocks of {} bytes in {} chunks on {} paths",
      layout.name, layout.blocks.size(), layout.block_bytes, layout.chunk_bytes.size(),
      layout.slot_counts.size(), first_block_.back(), options_.block_bytes, options_.chunk_bytes.size(),
      space_.path_count());
  const auto [there, here] = std::ranges::mismatch(layout.chunk_bytes, options_.chunk_bytes);
  if (there != layout.chunk_bytes.end() && here != options_.chunk_bytes.end())
    reason += fmt::format("; chunk {} has {} bytes there and {} here", there - layout.chunk_bytes.begin(),
                          *there, *here);
  throw Error(ErrorKind::config,
              {"cannot resume from the nvme tier in", space_.folder(0).path(), std::move(reason),
               "resume with the tensors, in their order, and the settings of the run that wrote it"});
}

// Returns the number of slots of the file, which may be more than asked for.
uint32_t BlockStore::open_file(uint32_t path, uint32_t slot_count) {
  const std::string name = space_.folder(path).file_path(options_.name);
  if (access(name.c_str(), F_OK) != 0 && errno == ENOENT)
    tier::corrupt("the tier file", name, "it is missing");
  io::File file =
      io::File::open(name, {.access = io::FileAccess::read_write, .direct = true, .events = space_.events()});
  warn_of_page_cache(file, nullptr, log_);
  require_alignment(file);
  struct stat status;
  if (fstat(file.fd(), &status) == 0 && status.st_nlink > 1)
    log_.warning(name + " has other names (hard links): what they show changes with it");
  if (fchmod(file.fd(), 0600) != 0)
    log_.warning(name + " may be read by others: " + system_reason(errno).text);
  const uint64_t bytes = file.size_bytes();
  if (bytes < TierFolder::kMarkBytes || (bytes - TierFolder::kMarkBytes) % options_.block_bytes != 0 ||
      !has_mark(file, bytes - TierFolder::kMarkBytes))
    tier::corrupt("the tier file", name, fmt::format("it has {} bytes, or lacks the mark at its end", bytes));
  const uint64_t had = (bytes - TierFolder::kMarkBytes) / options_.block_bytes;
  TERRACE_ASSERT(had < std::numeric_limits<uint32_t>::max(), "more slots than a file can have");
  const uint32_t slots = std::max(slot_count, static_cast<uint32_t>(had));
  const uint64_t slot_bytes = slots * options_.block_bytes;
  // The new mark is written first, as in a new file; the old one then belongs to a free slot.
  if (had < slots) write_mark(file, slot_bytes, space_.events());
  // A crash in the middle of this call may have left the mark without the space in front of it.
  file.preallocate(slot_bytes + TierFolder::kMarkBytes);
  files_[path] = std::make_unique<File>(std::move(file), path, slots);
  return slots;
}

}  // namespace terrace
