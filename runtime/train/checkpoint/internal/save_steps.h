// A save, step by step: what save_checkpoint() does, with a view for tests of the moments at which a job may
// die.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/checkpoint/state_source.h>

namespace terrace::checkpoint {

// In their order. Whatever a job has done when it dies, what it leaves is like one of these or like a part of
// the file being written between two of them.
enum class SaveMoment : uint8_t {
  folder_made,       // the partial folder, still empty
  states_written,    // on the device, as the next three
  frozen_written,    // only with frozen parameters
  manifest_written,  // the partial folder is complete
  next_written,      // which step `latest` is about to name
  old_moved_away,    // only when a checkpoint of this step is replaced and names cannot be exchanged
  in_place,          // the new checkpoint has its name
  latest_written,    // and it is the latest; one that was replaced still lies aside
  finished,
};

std::string_view name_of(SaveMoment moment);

struct SaveHooks {
  bool can_exchange = true;  // false plays a file system that cannot exchange two names
  FunctionRef<void(SaveMoment)> reached;
};

// `info` with its tensor_hash.
std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      StateSource& source, Log& log, const SaveHooks& hooks);
std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log,
                                      const SaveHooks& hooks);

}  // namespace terrace::checkpoint
