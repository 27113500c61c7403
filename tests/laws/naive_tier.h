// A reader of tier folders that shares nothing with the product's: written from docs/nvme_format.md, without
// a check of anything. It answers one question: does any commit own this byte of this file?
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace terrace::laws {

class NaiveTier {
 public:
  struct Owner {
    uint64_t chunk = 0;
    uint64_t block_offset_in_chunk = 0;
  };

  // `folders` in the order of the paths of the space.
  explicit NaiveTier(const std::vector<std::filesystem::path>& folders) : folders_(folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folders.front()))
      if (entry.path().filename().string().starts_with("commit-")) read_manifest(entry.path());
    if (slots_.empty()) throw std::runtime_error("no commit in " + folders.front().string());
  }

  // Null: no commit needs this byte of this tier file.
  const Owner* owner(const std::filesystem::path& file, uint64_t offset) const {
    const auto found = slots_.find(file.string());
    if (found == slots_.end()) return nullptr;
    const File& slots = found->second;
    const auto slot = slots.owners.find(offset / slots.slot_bytes);
    if (slot == slots.owners.end()) return nullptr;
    return offset % slots.slot_bytes < slot->second.bytes ? &slot->second.owner : nullptr;
  }

 private:
  struct Slot {
    Owner owner;
    uint64_t bytes;  // of the block; the rest of the slot is nobody's
  };
  struct File {
    uint64_t slot_bytes = 0;
    std::map<uint64_t, Slot> owners;
  };

  template <typename Number>
  Number take() {
    Number number;
    std::memcpy(&number, bytes_.data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  void align() { at_ = (at_ + 7) / 8 * 8; }

  void read_manifest(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    at_ = 8;  // magic
    const auto version = take<uint32_t>();
    const auto stores = take<uint32_t>();
    at_ += 16 + 8;  // space, commit
    const auto info_bytes = take<uint64_t>();
    at_ += 8 + info_bytes;
    align();
    if (version >= 3) {
      const auto tensors = take<uint64_t>();
      at_ += 8 * tensors;  // their steps
    }
    for (uint32_t s = 0; s < stores; ++s) read_store();
  }

  void read_store() {
    const auto name_bytes = take<uint32_t>();
    const auto paths = take<uint32_t>();
    const auto slot_bytes = take<uint64_t>();
    const auto chunks = take<uint64_t>();
    take<uint64_t>();  // blocks: as many as the chunks have
    const std::string name(bytes_.data() + at_, name_bytes);
    at_ += name_bytes;
    align();
    at_ += 4 * paths;
    align();
    std::vector<uint64_t> chunk_bytes(chunks);
    for (uint64_t& bytes : chunk_bytes) bytes = take<uint64_t>();
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (uint64_t offset = 0; offset < chunk_bytes[chunk]; offset += slot_bytes) {
        const auto path = take<uint32_t>();
        const auto slot = take<uint32_t>();
        take<uint64_t>();  // checksum
        if (path == UINT32_MAX) continue;
        File& file = slots_[(folders_.at(path) / (name + ".tier")).string()];
        file.slot_bytes = slot_bytes;
        file.owners[slot] = {{chunk, offset}, std::min(slot_bytes, chunk_bytes[chunk] - offset)};
      }
    }
  }

  std::vector<std::filesystem::path> folders_;
  std::string bytes_;
  size_t at_ = 0;
  std::map<std::string, File> slots_;
};

}  // namespace terrace::laws
