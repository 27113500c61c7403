#include <system_error>

#include <terrace/runtime/checkpoint/commit_info.h>
#include <terrace/runtime/checkpoint/internal/saved_commit.h>

namespace terrace {

SavedState saved_commit(const CommitFile& file) {
  SavedState state;
  state.kind = file.retained ? SavedState::Kind::retained_commit : SavedState::Kind::commit;
  state.path = file.path;
  state.commit = file.commit;
  std::error_code ignored;
  state.time = std::filesystem::last_write_time(file.path, ignored);
  return state;
}

void add_contents(SavedState& state, const TierManifest& manifest) {
  state.bytes = 0;
  for (const StoreLayout& store : manifest.stores) {
    for (const uint64_t chunk : store.chunk_bytes) state.bytes += chunk;
  }
  state.is_of_other_program = !is_commit_info(manifest.info);
  if (!state.is_of_other_program) state.run = parse_commit_info(manifest.info, state.path);
}

}  // namespace terrace
