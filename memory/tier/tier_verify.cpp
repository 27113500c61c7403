#include <terrace/memory/tier/tier_verify.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include <terrace/aio/file.h>
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

// Returns an empty text if the whole block was read, else the reason.
std::string read_block(const io::File& file, uint64_t offset, std::span<std::byte> destination) {
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

class StoreVerifier {
 public:
  StoreVerifier(const std::vector<fs::path>& folders, const StoreLayout& store) : store_(store) {
    for (size_t p = 0; p < store.slot_counts.size(); ++p) {
      files_.emplace_back();
      if (store.slot_counts[p] == 0) continue;
      files_.back().emplace(io::File::open(folders.at(p) / tier::blocks_file_name(store.name),
                                           {.access = io::FileAccess::read}));
      posix_fadvise(files_.back()->fd(), 0, 0,
                    POSIX_FADV_DONTNEED);  // drops cached pages, so that reads reach the drive if possible
    }
    buffer_.resize(store.block_bytes);
  }

  uint64_t verify(FunctionRef<void(const BadTierBlock&)> bad) {
    uint64_t bytes = 0;
    size_t index = 0;
    for (uint32_t chunk = 0; chunk < store_.chunk_bytes.size(); ++chunk) {
      const uint64_t whole = store_.chunk_bytes[chunk];
      const uint64_t count = divide_up(whole, store_.block_bytes);
      for (uint32_t block = 0; block < count; ++block) {
        const uint64_t size = std::min(store_.block_bytes, whole - block * store_.block_bytes);
        bytes += verify_block(store_.blocks.at(index++), {{}, store_.name, chunk, block, 0, size, ""}, bad);
      }
    }
    return bytes;
  }

 private:
  uint64_t verify_block(const StoredBlock& stored, BadTierBlock at,
                        FunctionRef<void(const BadTierBlock&)> bad) {
    if (stored.path == kNoPath) return 0;
    const io::File& file = *files_.at(stored.path);
    at.file = file.path();
    at.offset = stored.slot * store_.block_bytes;
    const auto destination = std::span(buffer_).first(at.bytes);
    at.reason = read_block(file, at.offset, destination);
    if (at.reason.empty()) {
      const uint64_t found = checksum_of(destination);
      if (found == stored.checksum) return at.bytes;
      at.reason =
          fmt::format("its checksum is {:016x} and the manifest says {:016x}", found, stored.checksum);
    }
    bad(at);
    return at.bytes;
  }

  const StoreLayout& store_;
  std::vector<std::optional<io::File>> files_;  // by path
  std::vector<std::byte> buffer_;
};

}  // namespace

uint64_t verify_tier_blocks(std::span<const fs::path> paths, const TierManifest& manifest,
                            FunctionRef<void(const BadTierBlock&)> bad) {
  const std::vector<fs::path> folders = folders_of(paths);
  uint64_t bytes = 0;
  for (const StoreLayout& store : manifest.stores) bytes += StoreVerifier(folders, store).verify(bad);
  return bytes;
}

}  // namespace terrace
