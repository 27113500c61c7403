// The folders that `terrace train` writes to: checks that they can be used, and says what a crash would cost.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/checkpoint_folder.h>

#include "flags/train_flags.h"

namespace terrace {

// Returns one line: what protects the run against a crash, how it goes on after one, and how much is lost
// then.
std::string crash_notice(const TrainFlags& flags, const TrainConfig& config, const TrainerPlan& plan);

// Folders that a run has made. At the end of the scope those that nothing was put into are gone again.
class MadeFolders {
 public:
  MadeFolders() = default;
  explicit MadeFolders(std::vector<std::filesystem::path> made) : made_(std::move(made)) {}
  MadeFolders(MadeFolders&&) = default;
  MadeFolders& operator=(MadeFolders&&) = default;
  ~MadeFolders();

 private:
  std::vector<std::filesystem::path> made_;  // the lowest first
};

struct SaveFolderOfRun {
  MadeFolders made;
  std::unique_ptr<CheckpointFolder> folder;  // null without --save
};

// Opens the folder of --save, which is this run's alone from now on. Throws Error(config) if it has the
// checkpoints of another run, Error(io) if it cannot be written to or another job saves there, and
// Error(capacity) if a checkpoint, together with the tier files of the run, has no room there.
SaveFolderOfRun open_save_folder(const TrainFlags& flags, const TrainerPlan& plan, Log& log);
// Throws Error(config) if a folder of the nvme tier does not exist, and Error(io) if it cannot be written to.
void check_nvme_folders(const PlacementConfig& placement);

}  // namespace terrace
