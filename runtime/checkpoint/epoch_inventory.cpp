#include <terrace/runtime/checkpoint/epoch_inventory.h>

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/memory/tier_space.h>
#include <terrace/memory/tier_verify.h>
#include <terrace/runtime/checkpoint/epoch_info.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

TierManifest manifest_of(const fs::path& path) {
  return parse_tier_manifest(io::read_whole_file(path, kLargestManifestBytes), path);
}

uint64_t state_bytes(const TierManifest& manifest) {
  uint64_t bytes = 0;
  for (const StoreLayout& store : manifest.stores) {
    for (const uint64_t chunk : store.chunk_bytes) bytes += chunk;
  }
  return bytes;
}

SavedState look_at(const EpochFile& file) {
  SavedState state;
  state.kind = file.retained ? SavedState::Kind::retained_epoch : SavedState::Kind::epoch;
  state.path = file.path;
  state.epoch = file.epoch;
  std::error_code ignored;
  state.time = fs::last_write_time(file.path, ignored);
  try {
    const TierManifest manifest = manifest_of(file.path);
    state.bytes = state_bytes(manifest);
    const CheckpointInfo info = parse_epoch_info(manifest.info, file.path).run;
    state.step = info.step;
    state.model = info.model;
  } catch (const Error& failure) {
    state.trouble = failure.parts().reason;
  }
  return state;
}

std::vector<TierPath> tier_paths_of(std::span<const fs::path> paths) {
  std::vector<TierPath> result;
  for (const fs::path& path : paths) result.push_back({path, 0});
  return result;
}

// Of a running job, an epoch goes when the next one is there.
bool is_replaced(std::span<const fs::path> paths, const SavedState& epoch) {
  const FoundTier now = look_at_tier(paths);
  return std::none_of(now.epochs.begin(), now.epochs.end(),
                      [&](const EpochFile& file) { return file.epoch == epoch.epoch; });
}

}  // namespace

bool is_tier_path(const fs::path& path) {
  const fs::path one[] = {path};
  return look_at_tier(one).present;
}

TierListing list_epochs(std::span<const fs::path> paths) {
  const FoundTier found = look_at_tier(paths);
  TierListing listing;
  listing.in_use = found.in_use;
  for (const EpochFile& file : found.epochs) listing.states.push_back(look_at(file));
  if (!listing.states.empty()) {
    SavedState& newest = listing.states.back();
    newest.is_latest = found.whole;
    if (!found.whole && newest.trouble.empty()) newest.trouble = found.trouble;
  } else if (found.has_manifests) {
    listing.trouble = found.trouble;
  }
  return listing;
}

uint64_t verify_epoch(std::span<const fs::path> paths, const SavedState& epoch,
                      FunctionRef<void(const BadBlock&)> bad, Log& log) {
  if (!epoch.trouble.empty())
    throw Error(ErrorKind::corrupt,
                {"cannot verify the epoch", epoch.path.string(), epoch.trouble, "see above"});
  std::vector<BadBlock> found;
  const uint64_t bytes = verify_tier_blocks(paths, manifest_of(epoch.path), [&](const BadTierBlock& block) {
    found.push_back({block.file, fmt::format("{}, chunk {}, block {}", block.store, block.chunk, block.block),
                     block.offset, block.bytes, block.reason});
  });
  if (!found.empty() && is_replaced(paths, epoch)) {
    log.info(fmt::format(
        "epoch {} was replaced by a later one of its job while it was read: it is not judged", epoch.epoch));
    return bytes;
  }
  for (const BadBlock& block : found) bad(block);
  return bytes;
}

std::vector<fs::path> prune_epochs(std::span<const fs::path> paths, uint64_t keep_count, Log& log) {
  const std::vector<EpochFile> epochs = look_at_tier(paths).epochs;
  std::vector<fs::path> removed;
  if (keep_count == 0) {
    // A space that begins anew removes all of what was there, and at its end all of its own.
    TierSpaceOptions options;
    options.paths = tier_paths_of(paths);
    options.discard_epochs = true;
    const TierSpace space(std::move(options), log);
    for (const EpochFile& file : epochs) removed.push_back(file.path);
    return removed;
  }
  if (epochs.size() <= keep_count) return removed;
  TierSpaceOptions options;
  options.paths = tier_paths_of(paths);
  options.start = TierStart::resume;
  TierSpace space(std::move(options), log);
  space.keep_files(true);
  for (size_t i = 0; i + keep_count < epochs.size(); ++i) {
    space.remove_epoch(epochs[i].epoch);
    removed.push_back(epochs[i].path);
  }
  return removed;
}

}  // namespace terrace
