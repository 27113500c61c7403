// A commit of the nvme tier as a saved state.
#pragma once

#include <terrace/memory/tier/tier_manifest.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/runtime/checkpoint/inventory.h>

namespace terrace {

// Returns what the commit's file says of it by name and time: the bytes and the run are not known yet.
SavedState saved_commit(const CommitFile& file);
// Adds the bytes and the run. Throws Error(corrupt) when the manifest's info does not describe a run.
void add_contents(SavedState& state, const TierManifest& manifest);

}  // namespace terrace
