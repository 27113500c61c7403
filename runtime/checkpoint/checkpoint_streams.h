// Checkpoints of programs that have files of their own beside the state: a saved state (runtime/saved/) whose
// first files, and what it says of itself, are those of every checkpoint.
#pragma once

#include <string>

#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/state_source.h>
#include <terrace/runtime/saved/saved_state.h>

namespace terrace {

// The name in CheckpointInfo::settings of the optimizer, as JSON: "\"AdamW\"".
inline constexpr const char* kOptimizerSetting = "optimizer.type";

// The files that a checkpoint may have, of this and earlier versions.
saved::StateKind checkpoint_kind();

// Writes the files of the state, before any other file of the writer, and returns the facts with which it is
// to be completed. They hold `info` and the list of tensors, whose hash need not be in it.
std::string write_checkpoint_streams(saved::StateWriter& writer, const CheckpointInfo& info,
                                     StateSource& source);

}  // namespace terrace
