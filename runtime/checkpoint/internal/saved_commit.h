// A commit of the nvme tier as a saved state.
#pragma once

#include <terrace/memory/tier/tier_manifest.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/runtime/checkpoint/inventory.h>

namespace terrace {

// Returns what the commit's file says of it by name and time: the bytes and the run are not known yet.
SavedState saved_commit(const CommitFile& file);
// Adds the bytes, and the run unless the commit is another program's. The manifest is whole, by its checksum.
// Throws Error(corrupt) when its info describes a run wrongly.
void add_contents(SavedState& state, const TierManifest& manifest);

}  // namespace terrace
