#include <terrace/memory/tier/tier_manifest.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include <terrace/base/assert.h>
#include <terrace/base/checksum.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/internal/bytes.h>
#include <terrace/memory/tier/internal/tier_files.h>

namespace terrace {
namespace {

using tier::ByteReader;
using tier::ByteWriter;

constexpr uint32_t kVersion = 4;
constexpr uint32_t kFirstWithLayout = 2;
constexpr uint32_t kFirstWithSteps = 3;
constexpr uint32_t kFirstWithShard = 4;
constexpr tier::FileHead kHead{"the manifest of a commit", tier::kManifestMagic, kVersion};

constexpr uint64_t kHeaderBytes = 56;
constexpr uint64_t kStoreHeaderBytes = 32;
constexpr uint64_t kShardBytes = 16;
constexpr uint64_t kBlockBytes = 16;
constexpr uint64_t kAlignment = 4096;
constexpr uint32_t kMostStores = 16;
constexpr uint32_t kMostMoments = 2;
constexpr uint32_t kMostPaths = 256;
constexpr uint64_t kLargestChunkBytes = uint64_t{1} << 62;

// Returns why a manifest cannot have this store; empty if it can. Reader and writer use the same check.
std::string why_not(const StoreLayout& store, size_t path_count) {
  if (!tier::is_store_name(store.name)) return fmt::format("\"{}\" is no name of a store", store.name);
  if (store.slot_counts.size() != path_count) return "its stores differ in the number of paths";
  if (store.block_bytes == 0 || store.block_bytes % kAlignment != 0 ||
      store.block_bytes > kLargestTierBlockBytes)
    return fmt::format("store \"{}\" has blocks of {} bytes", store.name, store.block_bytes);
  uint64_t blocks = 0;
  for (size_t c = 0; c < store.chunk_bytes.size(); ++c) {
    const uint64_t bytes = store.chunk_bytes[c];
    if (bytes % kAlignment != 0 || bytes > kLargestChunkBytes)
      return fmt::format("chunk {} of store \"{}\" has {} bytes", c, store.name, bytes);
    blocks += divide_up(bytes, store.block_bytes);
    if (blocks > store.blocks.size()) break;
  }
  if (blocks != store.blocks.size())
    return fmt::format("store \"{}\" lists {} blocks and its chunks have {}", store.name, store.blocks.size(),
                       blocks);
  std::vector<uint64_t> taken;
  taken.reserve(store.blocks.size());
  for (size_t b = 0; b < store.blocks.size(); ++b) {
    const StoredBlock& block = store.blocks[b];
    if (block.path == kNoPath) {
      if (block.slot == 0 && block.checksum == 0) continue;
      return fmt::format("block {} of store \"{}\" is in no path and yet in a slot", b, store.name);
    }
    if (block.path >= path_count || block.slot >= store.slot_counts[block.path])
      return fmt::format("block {} of store \"{}\" is in slot {} of path {}, which does not exist", b,
                         store.name, block.slot, block.path);
    taken.push_back(uint64_t{block.path} << 32 | block.slot);
  }
  std::ranges::sort(taken);
  if (const auto twice = std::ranges::adjacent_find(taken); twice != taken.end())
    return fmt::format("two blocks of store \"{}\" are in slot {} of path {}", store.name,
                       *twice & 0xffffffff, *twice >> 32);
  return "";
}

// Packs a layout into eight bytes: form of the master, number of moments, bytes of one of their elements,
// zeros.
uint64_t number_of(const RecordLayout& layout) {
  return uint64_t{layout.master == MasterForm::remainder} | uint64_t{layout.moment_count} << 8 |
         uint64_t{bytes_of(layout.moment_type)} << 16;
}

std::optional<RecordLayout> layout_of(uint64_t number) {
  RecordLayout layout;
  layout.master = (number & 0xff) == 0 ? MasterForm::whole : MasterForm::remainder;
  layout.moment_count = number >> 8 & 0xff;
  const uint64_t moment_bytes = number >> 16 & 0xff;
  layout.moment_type = moment_bytes == 4   ? MomentType::fp32
                       : moment_bytes == 2 ? MomentType::bf16
                                           : MomentType::int8;
  if (layout.moment_count > kMostMoments || number_of(layout) != number) return std::nullopt;
  return layout;
}

std::string why_not(const TierManifest& manifest) {
  if (manifest.commit == 0) return "commits are numbered from 1";
  if (manifest.layout.moment_count > kMostMoments) return "no optimizer has such states";
  if (manifest.shard.number >= manifest.shard.count)
    return fmt::format("it is shard {} of {}", manifest.shard.number, manifest.shard.count);
  if (manifest.shard.agreed >= manifest.commit)
    return fmt::format("it is commit {} and all shards have {}", manifest.commit, manifest.shard.agreed);
  for (size_t s = 0; s < manifest.stores.size(); ++s) {
    const StoreLayout& store = manifest.stores[s];
    const std::string reason = why_not(store, manifest.stores.front().slot_counts.size());
    if (!reason.empty()) return reason;
    for (size_t other = 0; other < s; ++other) {
      if (manifest.stores[other].name == store.name)
        return fmt::format("two stores are called \"{}\"", store.name);
    }
  }
  return "";
}

StoreLayout read_store(ByteReader& reader, const std::string& path) {
  const auto require = [&](bool holds) {
    if (!holds) tier::corrupt(kHead.what, path, "it ends in the middle of a store");
  };
  require(reader.left() >= kStoreHeaderBytes);
  const auto name_bytes = reader.number<uint32_t>();
  const auto path_count = reader.number<uint32_t>();
  StoreLayout store;
  store.block_bytes = reader.number<uint64_t>();
  const auto chunk_count = reader.number<uint64_t>();
  const auto block_count = reader.number<uint64_t>();
  require(name_bytes <= reader.left());
  const std::span<const std::byte> name = reader.bytes(name_bytes);
  store.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  require(reader.skip_padding());
  // Every count is compared with the bytes that are left before anything is allocated for it.
  require(path_count <= kMostPaths && uint64_t{path_count} * sizeof(uint32_t) <= reader.left());
  for (uint32_t p = 0; p < path_count; ++p) store.slot_counts.push_back(reader.number<uint32_t>());
  require(reader.skip_padding());
  require(chunk_count <= reader.left() / sizeof(uint64_t));
  store.chunk_bytes.resize(chunk_count);
  for (uint64_t& bytes : store.chunk_bytes) bytes = reader.number<uint64_t>();
  require(block_count <= reader.left() / kBlockBytes);
  store.blocks.resize(block_count);
  for (StoredBlock& block : store.blocks) {
    block.path = reader.number<uint32_t>();
    block.slot = reader.number<uint32_t>();
    block.checksum = reader.number<uint64_t>();
  }
  return store;
}

void write_store(ByteWriter& writer, const StoreLayout& store) {
  writer.number(static_cast<uint32_t>(store.name.size()));
  writer.number(static_cast<uint32_t>(store.slot_counts.size()));
  writer.number(store.block_bytes);
  writer.number(uint64_t{store.chunk_bytes.size()});
  writer.number(uint64_t{store.blocks.size()});
  writer.text(store.name);
  writer.pad();
  for (const uint32_t count : store.slot_counts) writer.number(count);
  writer.pad();
  for (const uint64_t bytes : store.chunk_bytes) writer.number(bytes);
  for (const StoredBlock& block : store.blocks) {
    writer.number(block.path);
    writer.number(block.slot);
    writer.number(block.checksum);
  }
}

}  // namespace

std::string text_of(const SpaceId& id) {
  std::string text;
  for (const std::byte byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::vector<std::byte> serialise(const TierManifest& manifest) {
  const std::string reason = why_not(manifest);
  TERRACE_ASSERT(reason.empty(), "no manifest: " + reason);
  TERRACE_ASSERT(manifest.stores.size() <= kMostStores, "more stores than a manifest has room for");
  uint64_t bytes = kHeaderBytes + tier::kChecksumBytes + manifest.info.size() + 16 + kShardBytes +
                   manifest.tensor_steps.size() * sizeof(uint64_t);
  for (const StoreLayout& store : manifest.stores) {
    bytes += kStoreHeaderBytes + store.name.size() + 16 + store.slot_counts.size() * sizeof(uint32_t) +
             store.chunk_bytes.size() * sizeof(uint64_t) + store.blocks.size() * kBlockBytes;
  }
  TERRACE_ASSERT(bytes <= kLargestManifestBytes, "a manifest of " + std::to_string(bytes) + " bytes");
  ByteWriter writer;
  writer.reserve(bytes);
  writer.text(kHead.magic);
  const bool is_shard = manifest.shard.count > 1;
  TERRACE_ASSERT((manifest.version >= kFirstWithLayout || manifest.layout == RecordLayout{}) &&
                     (manifest.version >= kFirstWithShard) == is_shard &&
                     (is_shard || (manifest.version >= kFirstWithSteps) == !manifest.tensor_steps.empty()),
                 "a manifest that its version has no words for");
  writer.number(manifest.version);
  writer.number(static_cast<uint32_t>(manifest.stores.size()));
  writer.bytes(manifest.space.bytes);
  writer.number(manifest.commit);
  writer.number(uint64_t{manifest.info.size()});
  writer.number(manifest.version < kFirstWithLayout ? 0 : number_of(manifest.layout));
  writer.text(manifest.info);
  writer.pad();
  if (manifest.version >= kFirstWithSteps) {
    writer.number(uint64_t{manifest.tensor_steps.size()});
    for (const uint64_t steps : manifest.tensor_steps) writer.number(steps);
  }
  if (is_shard) {
    writer.number(manifest.shard.number);
    writer.number(manifest.shard.count);
    writer.number(manifest.shard.agreed);
  }
  for (const StoreLayout& store : manifest.stores) write_store(writer, store);
  writer.number(checksum_of(writer.written()));
  return writer.take();
}

TierManifest parse_tier_manifest(std::span<const std::byte> bytes, const std::filesystem::path& name) {
  const std::string path = name.string();
  const uint32_t version = tier::check_head(bytes, kHead, path);
  const auto require = [&](bool holds, std::string_view reason) {
    if (!holds) tier::corrupt(kHead.what, path, std::string(reason));
  };
  require(bytes.size() >= kHeaderBytes + tier::kChecksumBytes, "it ends in its header");
  ByteReader reader(bytes.first(bytes.size() - tier::kChecksumBytes));
  reader.bytes(tier::kManifestMagic.size() + sizeof(uint32_t));
  TierManifest manifest;
  manifest.version = version;
  const auto store_count = reader.number<uint32_t>();
  std::ranges::copy(reader.bytes(manifest.space.bytes.size()), manifest.space.bytes.begin());
  manifest.commit = reader.number<uint64_t>();
  const auto info_bytes = reader.number<uint64_t>();
  const auto layout_number = reader.number<uint64_t>();
  const std::optional<RecordLayout> layout = layout_of(layout_number);
  require(version < kFirstWithLayout ? layout_number == 0 : layout.has_value(),
          "its header is not one of this version");
  if (version >= kFirstWithLayout) manifest.layout = *layout;
  require(info_bytes <= reader.left(), "its text is longer than the file");
  const std::span<const std::byte> info = reader.bytes(info_bytes);
  manifest.info.assign(reinterpret_cast<const char*>(info.data()), info.size());
  require(reader.skip_padding(), "its text is not followed by zeros");
  if (version >= kFirstWithSteps) {
    const auto count = reader.number<uint64_t>();
    require((count > 0 || version >= kFirstWithShard) && count <= reader.left() / sizeof(uint64_t),
            "its steps are not of tensors");
    for (uint64_t t = 0; t < count; ++t) manifest.tensor_steps.push_back(reader.number<uint64_t>());
  }
  if (version >= kFirstWithShard) {
    require(reader.left() >= kShardBytes, "it ends before it says which shard it is");
    manifest.shard.number = reader.number<uint32_t>();
    manifest.shard.count = reader.number<uint32_t>();
    manifest.shard.agreed = reader.number<uint64_t>();
    require(manifest.shard.count > 1, "it says that it is a shard, and is the only one");
  }
  require(store_count <= kMostStores, "it has more stores than any");
  for (uint32_t s = 0; s < store_count; ++s) manifest.stores.push_back(read_store(reader, path));
  require(reader.left() == 0, "something follows its last store");
  require(why_not(manifest).empty(), why_not(manifest));
  return manifest;
}

}  // namespace terrace
