#include <terrace/offload/activations/saved_disk.h>

#include <algorithm>

#include <terrace/base/error.h>

namespace terrace {

void SavedDisk::take(uint32_t count, std::vector<Unit>& units) {
  if (free_.size() < count) add_store(static_cast<uint32_t>(count - free_.size()));
  units.assign(free_.end() - count, free_.end());
  free_.resize(free_.size() - count);
}

void SavedDisk::give_back(std::vector<Unit>& units) {
  free_.insert(free_.end(), units.begin(), units.end());
  units.clear();
}

// A drive that has no room for a large file may have it for what is needed now.
void SavedDisk::add_store(uint32_t missing) {
  const auto number = static_cast<uint32_t>(stores_.size());
  uint32_t units = std::max({missing, kFirstUnits, static_cast<uint32_t>(unit_count_)});
  std::unique_ptr<BlockStore> made;
  try {
    made = make_store_(number, units);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::capacity || units == missing) throw;
    made = make_store_(number, units = missing);
  }
  stores_.push_back(std::move(made));
  unit_count_ += units;
  free_.reserve(unit_count_);
  for (uint32_t chunk = units; chunk-- > 0;) free_.push_back({stores_.back().get(), ChunkId{chunk}});
}

uint64_t SavedDisk::file_bytes() const {
  uint64_t bytes = 0;
  for (const std::unique_ptr<BlockStore>& store : stores_) bytes += store->file_bytes();
  return bytes;
}

}  // namespace terrace
