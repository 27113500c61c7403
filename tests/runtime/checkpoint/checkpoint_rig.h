// A toy trainer whose state fills several blocks of a checkpoint, and small helpers of the checkpoint tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

#include "offload/toy_rig.h"
#include "support/expect_error.h"

namespace terrace::checkpoint_tests {

namespace fs = std::filesystem;
using testing::expect_error;

inline constexpr uint64_t kRun = 0x0123456789abcdef;

using RigOptions = ToyCase<RigKind::checkpoints>;

class TrainingRig : private OwnFolder, public ToyRig {
 public:
  explicit TrainingRig(const RigOptions& rig) : ToyRig(rig, {folder.path()}), type_(rig.type) {}

  TrainingRig& initialise();
  TrainingRig& train(uint64_t first_step, uint64_t last_step);

  CheckpointInfo info(uint64_t step) const;
  uint64_t run_id = kRun;
  fs::path save(const fs::path& saves, uint64_t step);
  CheckpointInfo load(const fs::path& path);
  bool has_logged(const std::string& fragment) const;

 private:
  DataType type_;
};

std::string text_of(const fs::path& path);
void write_text(const fs::path& path, const std::string& text);

// Names that begin with a point: what a finished save must not leave.
std::vector<std::string> hidden_names(const fs::path& folder);

// A file system of a few MiB in memory, for the time of a test; only root may make one.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& size);
  ~SmallFileSystem();
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  const fs::path& path() const { return folder_.path(); }
  const std::string& refusal() const { return reason_; }

 private:
  ScratchFolder folder_;
  std::string reason_;
};

}  // namespace terrace::checkpoint_tests
