// The facts of a run in a saved state: the members that the manifest of a checkpoint and the text of a commit
// have in common. They are written and read in one place, since a fact that only one of the two had would be
// lost.
#pragma once

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/json_members.h>

namespace terrace::checkpoint {

// Writes the facts as members, in their order. `with_architecture`: the format has an architecture.
void write_facts(JsonWriter& json, const CheckpointInfo& info, bool with_architecture);
CheckpointInfo read_facts(Members& members, bool with_architecture);

}  // namespace terrace::checkpoint
