// Checkpoints: the whole training state in a folder of its own. A crash at any instruction of a save leaves
// the checkpoint before it, and no damaged byte goes unnoticed when one is read. A checkpoint knows nothing
// of placement, budgets and chunk sizes, which may differ when a run resumes. Code here must never hold more
// than a block of the state in memory. The format is in docs/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/checkpoint/checkpoint_folder.h>

namespace terrace {

// The facts that a checkpoint holds about itself. The position in the learning-rate schedule is the step,
// less the steps that the loss scaler skipped.
struct CheckpointInfo {
  // Identifies a run and all runs that go on from it; drawn when it begins. 0: checkpoints before version 4.
  uint64_t run_id = 0;
  uint64_t step = 0;  // steps done
  std::string model;  // for people: the model of the tensors
  // For programs (reference/model/weights/architecture.h); empty in checkpoints of version 1.
  std::string architecture;
  uint64_t tensor_hash = 0;                  // hash_of_tensors(); save_checkpoint sets it by itself
  DataType type = DataType::bf16;            // type of the parameters
  uint64_t seed = 0;                         // seed of every random number of the run
  std::map<std::string, uint64_t> position;  // place in the data, in the caller's words (printable ASCII)
  // The loss scaler's state, in its own words; empty without a loss scaler.
  std::map<std::string, uint64_t> loss_scaler;
  // The settings that a resumed run may change and should report: text by name (both printable ASCII).
  std::map<std::string, std::string> settings;
  // How many updates each tensor has had, where tensors count their own steps, in checkpoints alone: a commit
  // has them beside this.
  std::vector<uint64_t> tensor_steps;
  // Elements of a chunk of the flat space, in commits alone: a run that goes on there needs the same.
  uint64_t chunk_elements = 0;
};

// Saves the state between two steps as `<folder>/step-<info.step>` and returns that path. It replaces a
// checkpoint of the same step; at every moment one of the two is there. At the end `<folder>/latest` names
// the new one. Throws Error(capacity) when the drive is too small and Error(io) otherwise; the earlier
// checkpoints and the state in memory are then unchanged.
std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log);

// Reads the manifest and no state. `path` is one step's folder, or the folder above for its latest
// checkpoint.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& path);

// Returns the checkpoints from which a run may resume in `folder`, the best first: the one that `latest`
// names, then those of earlier steps, newest first. Without a readable `latest` it returns all checkpoints.
// It looks only at names. Empty when there is none; throws Error(io) when the folder cannot be read.
std::vector<std::filesystem::path> checkpoints_to_resume_from(const std::filesystem::path& folder);

// Removes checkpoints of steps before `step`, which must have been saved in `folder`, oldest first, until
// `keep_count` (at least 1) remain, `step` included. It leaves those of other runs than `run_id`, of later
// steps, and those with a file that no save makes. A crash leaves every checkpoint whole or gone. A failed
// removal is a warning.
void remove_older_checkpoints(const CheckpointFolder& folder, uint64_t run_id, uint64_t step,
                              uint64_t keep_count, Log& log);

// Returns why this run could not go on from the checkpoint of a step in `folder`, judged by `latest`,
// manifest and file sizes; empty if it could.
std::string why_not_saved(const CheckpointFolder& folder, uint64_t run_id, uint64_t step);

// Sets the whole state of `offloader`, which is between two steps, and returns the facts that the caller must
// take over: step, seed and data position. `model` describes the model of `space` for messages. Throws
// Error(config) when the checkpoint is of other tensors, Error(corrupt) when a byte is damaged, and Error(io)
// when a file is missing. Manifest, tensors and file sizes are checked before anything changes. Every block
// is checked before it is used; when a block is bad the blocks before it have been taken over, and the run
// must stop.
CheckpointInfo load_checkpoint(const std::filesystem::path& path, std::string_view model,
                               const FlatSpace& space, Offloader& offloader, Log& log);

// Throws Error(config) unless the state saved in `where` has the tensors of `space`, which are those of
// `model`.
void require_tensors(const std::filesystem::path& where, const CheckpointInfo& saved, std::string_view model,
                     const FlatSpace& space);

// Throws as load_checkpoint() into an offloader of this layout would. Reads every byte and changes nothing.
void require_loadable_checkpoint(const std::filesystem::path& path, std::string_view model,
                                 const FlatSpace& space, const RecordLayout& layout);

// Gives the values of tensors as fp32, from the files of a checkpoint alone: master weights, and parameters
// of frozen tensors. They come in flat order, each wanted tensor from its first element to its last in runs
// of at most kTileElements. Blocks without wanted tensors are not read; every byte that is read is checked.
// Throws as load_checkpoint() does.
void read_checkpoint_values(
    const std::filesystem::path& path, const FlatSpace& space, FunctionRef<bool(TensorId)> wanted,
    FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)> sink);

// Returns a hash of the list of tensors: names, shapes, data types, trainable or not, by Muon or not, and
// order.
uint64_t hash_of_tensors(const FlatSpace& space);

}  // namespace terrace
