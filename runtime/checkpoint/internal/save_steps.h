// save_checkpoint() step by step, so that tests see the moments at which a job may die.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <terrace/base/function_ref.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/state_source.h>
#include <terrace/runtime/saved/saved_state.h>

namespace terrace::checkpoint {

// The moments of a save, in order. A job that dies leaves a state like one of these, or a part of the file
// that is written between two of them.
enum class SaveMoment : uint8_t {
  folder_made,       // the partial folder, still empty
  states_written,    // on the drive, as the next three are
  frozen_written,    // only with frozen parameters
  manifest_written,  // the partial folder is complete
  next_written,      // the file that says which step `latest` will name
  old_moved_away,    // only when a checkpoint of this step is replaced and names cannot be exchanged
  in_place,          // the new checkpoint has its name
  latest_written,    // `latest` names it; a replaced one still lies aside
  finished,
};

struct SaveHooks {
  bool can_exchange = true;  // false simulates a file system that cannot exchange two names
  FunctionRef<void(SaveMoment)> reached;
};

// write_checkpoint_streams() step by step. `wrote` is told how many bytes more are written.
std::string write_streams(saved::StateWriter& writer, const CheckpointInfo& info, StateSource& source,
                          FunctionRef<void(uint64_t bytes)> wrote, FunctionRef<void(SaveMoment)> reached);

std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      StateSource& source, Log& log, const SaveHooks& hooks);
std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log,
                                      const SaveHooks& hooks);

}  // namespace terrace::checkpoint
