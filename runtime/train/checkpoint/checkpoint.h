// Checkpoints: the whole training state in a folder of its own, saved so that a crash at any instruction
// leaves the checkpoint before it, and read back so that not one damaged byte goes unnoticed. A checkpoint
// knows nothing of placement, budgets and chunk sizes: a run resumes with others than it was saved with. It
// must never hold more than a block of the state in memory. The format is in docs/checkpoint_format.md.
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
#include <terrace/runtime/train/checkpoint/checkpoint_folder.h>

namespace terrace {

// What a checkpoint says about itself. The position in the learning-rate schedule follows from the step, less
// the steps that the loss scaler skipped.
struct CheckpointInfo {
  // Of the run and of all that go on from it; drawn when it begins. 0: in checkpoints of before version 4.
  uint64_t run_id = 0;
  uint64_t step = 0;  // steps done
  std::string model;  // for people: what the tensors belong to
  // For programs: see runtime/model/weights/architecture.h; empty in checkpoints of version 1.
  std::string architecture;
  uint64_t tensor_hash = 0;                  // hash_of_tensors(); save_checkpoint sets it by itself
  DataType type = DataType::bf16;            // of the parameters
  uint64_t seed = 0;                         // of every random number of the run
  std::map<std::string, uint64_t> position;  // in the data, in the caller's words (printable ASCII)
  // Its state, in its own words; empty where nothing scales the loss.
  std::map<std::string, uint64_t> loss_scaler;
  // What a resumed run may change and should know that it does: by name, as text (printable ASCII both).
  std::map<std::string, std::string> settings;
};

// Saves the state between two steps as `<folder>/step-<info.step>` and returns that path. A checkpoint of the
// same step is replaced; there is no moment without either. Last of all, `<folder>/latest` names the new one.
// Throws Error(capacity) when the disk is too small and Error(io) otherwise: then the earlier checkpoints,
// and the state in memory, are as they were.
std::filesystem::path save_checkpoint(const CheckpointFolder& folder, const CheckpointInfo& info,
                                      const FlatSpace& space, Offloader& offloader, Log& log);

// `path` is one step's folder, or the folder above, whose latest checkpoint is meant. Reads the manifest and
// no state.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& path);

// The checkpoints that a run may take up from `folder`, the best first: the one that `latest` names, then
// those of earlier steps, the newest of them first; without a readable `latest` all there are. Only names are
// looked at. Empty when there is none; throws Error(io) when the folder cannot be read.
std::vector<std::filesystem::path> checkpoints_to_resume_from(const std::filesystem::path& folder);

// Removes checkpoints of earlier steps than `step`, which must have been saved in `folder`, the oldest first,
// until `keep_count` (at least 1) remain, that of `step` among them. Those of other runs than `run_id`, of
// later steps, and those with a file that no save has made are left alone. A crash leaves every checkpoint
// whole or gone. What cannot be removed is a warning.
void remove_older_checkpoints(const CheckpointFolder& folder, uint64_t run_id, uint64_t step,
                              uint64_t keep_count, Log& log);

// Why the checkpoint of a step in `folder` is not one that this run could go on from, as far as `latest`,
// manifest and file sizes say; empty when it is one.
std::string why_not_saved(const CheckpointFolder& folder, uint64_t run_id, uint64_t step);

// Sets the whole state of `offloader`, which is between two steps, and returns what the caller must take
// over: step, seed and data position. `model` describes the model of `space` for messages. Throws
// Error(config) when the checkpoint is of other tensors, Error(corrupt) when a byte is not as it was written,
// and Error(io) when a file is missing. Manifest, tensors and file sizes are checked before anything is
// changed. Every block is checked before any of it is used; when a block is bad the blocks before it have
// been taken over, and the run must stop.
CheckpointInfo load_checkpoint(const std::filesystem::path& path, std::string_view model,
                               const FlatSpace& space, Offloader& offloader, Log& log);

// Throws what load_checkpoint() would throw into an offloader of this layout. Reads every byte and changes
// nothing.
void require_loadable_checkpoint(const std::filesystem::path& path, std::string_view model,
                                 const FlatSpace& space, const RecordLayout& layout);

// The values of tensors as fp32, from the files of a checkpoint alone: master weights, and parameters of
// frozen tensors. In flat order, each wanted tensor from its first element to its last in runs of at most
// kTileElements. Blocks without wanted tensors are not read; every byte that is, is checked. Errors as of
// load_checkpoint().
void read_checkpoint_values(
    const std::filesystem::path& path, const FlatSpace& space, FunctionRef<bool(TensorId)> wanted,
    FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)> sink);

// Identifies the list of tensors: names, shapes, data types, trainable or not, and order.
uint64_t hash_of_tensors(const FlatSpace& space);

}  // namespace terrace
