// What a saved state says of the run that it is of: the members that the manifest of a checkpoint and the
// text of a commit have in common, written and read in one place. A fact that only one of the two knew would
// be lost on the way.
#pragma once

#include <string>
#include <string_view>

#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/internal/json_members.h>

namespace terrace::checkpoint {

// Adds a line `"key": value` to an object whose text begins with "{\n".
void add_member(std::string& text, std::string_view key, const std::string& json);

// The facts from "step" on, in their order; an architecture only where the format has one.
void add_facts(std::string& text, const CheckpointInfo& info, bool with_architecture);
CheckpointInfo read_facts(Members& members, bool with_architecture);

}  // namespace terrace::checkpoint
