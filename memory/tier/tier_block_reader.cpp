#include <terrace/memory/tier/tier_block_reader.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/internal/tier_files.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Returns the tier folders in the order of the space.
std::vector<fs::path> folders_of(std::span<const fs::path> paths) {
  std::vector<fs::path> folders(paths.size());
  for (const fs::path& path : paths) {
    const fs::path folder = path / tier::kFolderName;
    const fs::path label = folder / tier::kLabelName;
    const uint32_t index =
        tier::parse_label(io::read_whole_file(label, tier::kLabelBytes), label.string()).path_index;
    if (index < folders.size()) folders[index] = folder;
  }
  return folders;
}

// Returns an empty text if all was read, else the reason.
Reason read_all(const io::File& file, uint64_t offset, std::span<std::byte> destination) {
  while (!destination.empty()) {
    const ssize_t moved =
        pread(file.fd(), destination.data(), destination.size(), static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return system_reason(errno);
    if (moved == 0) return "the file ends before it";
    offset += static_cast<uint64_t>(moved);
    destination = destination.subspan(static_cast<size_t>(moved));
  }
  return "";
}

}  // namespace

TierBlockReader::TierBlockReader(std::span<const fs::path> paths, const StoreLayout& store) : store_(store) {
  const std::vector<fs::path> folders = folders_of(paths);
  for (size_t p = 0; p < store.slot_counts.size(); ++p) {
    files_.emplace_back();
    if (store.slot_counts[p] == 0) continue;
    files_.back().emplace(
        io::File::open(folders.at(p) / tier::blocks_file_name(store.name), {.access = io::FileAccess::read}));
    posix_fadvise(files_.back()->fd(), 0, 0,
                  POSIX_FADV_DONTNEED);  // drops cached pages, so that reads reach the drive if possible
  }
  for (uint32_t chunk = 0; chunk < store.chunk_bytes.size(); ++chunk) {
    const auto count = static_cast<uint32_t>(divide_up(store.chunk_bytes[chunk], store.block_bytes));
    for (uint32_t number = 0; number < count; ++number) blocks_.push_back({chunk, number});
  }
}

TierBlockReader::Block TierBlockReader::block(size_t index) const {
  const Place place = blocks_.at(index);
  const StoredBlock& stored = store_.blocks.at(index);
  const uint64_t begin = place.number * store_.block_bytes;
  Block block{place.chunk, place.number,
              std::min(store_.block_bytes, store_.chunk_bytes[place.chunk] - begin), "", 0};
  if (stored.path == kNoPath) return block;
  block.file = files_.at(stored.path)->path();
  block.offset = stored.slot * store_.block_bytes;
  return block;
}

Reason TierBlockReader::read(size_t index, std::span<std::byte> destination) const {
  const StoredBlock& stored = store_.blocks.at(index);
  if (stored.path == kNoPath) return "it was never written";
  Reason trouble = read_all(*files_.at(stored.path), stored.slot * store_.block_bytes, destination);
  if (!trouble.text.empty()) return trouble;
  const uint64_t found = checksum_of(destination);
  if (found == stored.checksum) return "";
  return fmt::format("its checksum is {:016x} and the manifest says {:016x}", found, stored.checksum);
}

}  // namespace terrace
