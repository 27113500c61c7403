// What a saved state says of the run that it is of: the members that the manifest of a checkpoint and the
// text of a commit have in common, written and read in one place. A fact that only one of the two knew would
// be lost on the way.
#pragma once

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/internal/json_members.h>

namespace terrace::checkpoint {

// Writes the facts as members, in their order; an architecture only where the format has one.
void write_facts(JsonWriter& json, const CheckpointInfo& info, bool with_architecture);
CheckpointInfo read_facts(Members& members, bool with_architecture);

}  // namespace terrace::checkpoint
