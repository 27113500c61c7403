// The folder of a run's checkpoints: the names in it, and the way in which a new checkpoint takes its place.
// Nothing here reads or writes a byte of state. A folder `<dir>` holds
//
//   step-00000020            a checkpoint
//   .step-00000020.partial   a checkpoint that is being saved or removed
//   .step-00000020.replaced  a checkpoint that another of its step replaces, if names cannot be exchanged
//   latest                   the name of the newest checkpoint
//   .latest.next             its next text, and the manifest that this step must have by then
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/runtime/train/checkpoint/checkpoint_folder.h>

namespace terrace::checkpoint {

inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kNextName = ".latest.next";
inline constexpr std::string_view kPartialSuffix = ".partial";
inline constexpr std::string_view kReplacedSuffix = ".replaced";

// Returns at least eight digits: step 20 is "step-00000020".
std::string step_name(uint64_t step);
bool is_step_name(std::string_view name);
// Returns 20 for "step-00000020".
std::optional<uint64_t> step_of(std::string_view name);
// Returns "step-00000020" for ".step-00000020.partial"; empty for any other name.
std::string step_of_aside(std::string_view name, std::string_view suffix);
// Returns the text of kNextName. `manifest` is the checkpoint's.
std::string next_text(uint64_t step, std::string_view manifest);

// Returns the checkpoint of `path`: a step's folder itself, or the one that `latest` in it names. Throws
// Error(io) when there is none and Error(corrupt) when `latest` names nothing; both name the existing
// checkpoints.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// Returns the name of the step that is complete while `latest` does not name it yet, because its job died
// between the two; empty if there is none.
std::string completed_next(const std::filesystem::path& folder);

// Removes a step's folder. If it holds a file that no save makes, leaves it alone with a warning and returns
// false. A crash leaves it whole or gone. Throws Error(io) when it cannot be moved aside.
bool remove_checkpoint(const CheckpointFolder& folder, const std::filesystem::path& path, Log& log);

}  // namespace terrace::checkpoint
