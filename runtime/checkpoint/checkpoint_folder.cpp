#include <terrace/runtime/checkpoint/checkpoint_folder.h>

#include <terrace/aio/folder.h>
#include <terrace/runtime/checkpoint/internal/folders.h>

namespace terrace {
namespace {

constexpr const char* kPartialWeights = ".weights.partial";

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, Log& log)
    : folder_(std::move(folder), checkpoint::state_kind(), log) {
  // What an export of the weights in 16 bits leaves beside the checkpoints where its job dies.
  if (io::is_there(path() / kPartialWeights)) const io::RemovedAtEnd removed(path() / kPartialWeights, log);
}

std::filesystem::path CheckpointFolder::final_path(uint64_t step) const {
  return folder_.final_path(checkpoint::step_name(step));
}

std::filesystem::path CheckpointFolder::partial_path(uint64_t step) const {
  return folder_.partial_path(checkpoint::step_name(step));
}

}  // namespace terrace
