// The file of a BlockStore on one path.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <terrace/aio/file.h>
#include <terrace/memory/tier/block_store.h>

namespace terrace {

inline constexpr uint64_t kDirectAlignment = 4096;  // alignment of blocks, in memory and in the file

struct BlockStore::File {
  File(io::File opened, uint32_t path_index, uint32_t slots)
      : file(std::move(opened)), path(file.path().string()), index(path_index), slot_count(slots) {}

  io::File file;
  std::string path;      // does not change once the store is made
  const uint32_t index;  // index of its path in the space
  const uint32_t slot_count;
  std::atomic<bool> unsynced{true};  // written since the last sync began
  bool lost = false;                 // a sync failed; used by sync() alone
};

}  // namespace terrace
