#include <terrace/memory/tier/tier_verify.h>

#include <vector>

#include <terrace/memory/tier/tier_block_reader.h>

namespace terrace {

uint64_t verify_tier_blocks(std::span<const std::filesystem::path> paths, const TierManifest& manifest,
                            FunctionRef<void(const BadTierBlock&)> bad) {
  uint64_t bytes = 0;
  for (const StoreLayout& store : manifest.stores) {
    const TierBlockReader reader(paths, store);
    std::vector<std::byte> buffer(store.block_bytes);
    for (size_t b = 0; b < reader.block_count(); ++b) {
      const TierBlockReader::Block block = reader.block(b);
      if (block.file.empty()) continue;
      const Reason reason = reader.read(b, std::span(buffer).first(block.bytes));
      bytes += block.bytes;
      if (!reason.text.empty())
        bad({block.file, store.name, block.chunk, block.number, block.offset, block.bytes, reason});
    }
  }
  return bytes;
}

}  // namespace terrace
