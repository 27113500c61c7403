// The folder of the checkpoints of a run: names in it, and how a new checkpoint takes its place. Nothing here
// reads or writes a byte of state. A folder `<dir>` holds
//
//   step-00000020            a checkpoint
//   .step-00000020.partial   one being saved, or one on its way out
//   .step-00000020.replaced  one that another of its step replaces, where names cannot be exchanged
//   latest                   the name of the newest
//   .latest.next             the name that it is about to get, and which manifest that step must have by then
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

// At least eight digits: step 20 is "step-00000020".
std::string step_name(uint64_t step);
bool is_step_name(std::string_view name);
// "step-00000020" -> 20.
std::optional<uint64_t> step_of(std::string_view name);
// ".step-00000020.partial" -> "step-00000020"; empty for any other name.
std::string step_of_aside(std::string_view name, std::string_view suffix);
// The text of kNextName. `manifest` is that of the checkpoint.
std::string next_text(uint64_t step, std::string_view manifest);

// The checkpoint that is meant by `path`: a step's folder itself, or the one that `latest` in it names.
// Throws Error(io) when there is none and Error(corrupt) when `latest` names nothing; naming the checkpoints
// that exist.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The checkpoint that is complete under its name and that `latest` does not name yet, because its job died
// between the two: the name of its step; empty when there is none.
std::string completed_next(const std::filesystem::path& folder);

// Removes a step's folder, unless it holds a file that no save makes: then it is left alone, with a warning,
// and the answer is false. A crash leaves it whole or gone. Throws Error(io) when it cannot be moved aside.
bool remove_checkpoint(const CheckpointFolder& folder, const std::filesystem::path& path, Log& log);

}  // namespace terrace::checkpoint
