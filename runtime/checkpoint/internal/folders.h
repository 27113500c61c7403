// The folder of a run's checkpoints: the names in it, and how a checkpoint is found there. A checkpoint is a
// saved state (runtime/saved/save_folder.h) whose name is that of its step, "step-00000020". Nothing here
// reads or writes a byte of state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/runtime/saved/save_folder.h>

namespace terrace::checkpoint {

using saved::kLatestName;

// What a checkpoint is among saved states.
saved::StateKind state_kind();

// Returns at least eight digits: step 20 is "step-00000020".
std::string step_name(uint64_t step);
bool is_step_name(std::string_view name);
// Returns 20 for "step-00000020".
std::optional<uint64_t> step_of(std::string_view name);
// Returns the checkpoint of `path`: a step's folder itself, or the one that `latest` in it names. Throws
// Error(io) when there is none and Error(corrupt) when `latest` names nothing; both name the existing
// checkpoints.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace terrace::checkpoint
