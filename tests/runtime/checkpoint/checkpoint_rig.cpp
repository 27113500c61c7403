#include "runtime/checkpoint/checkpoint_rig.h"

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace terrace::checkpoint_tests {

TrainingRig& TrainingRig::initialise() {
  toy::initialise(*offloader);
  return *this;
}

TrainingRig& TrainingRig::train(uint64_t first_step, uint64_t last_step) {
  for (uint64_t number = first_step; number <= last_step; ++number) step(number);
  return *this;
}

CheckpointInfo TrainingRig::info(uint64_t step) const {
  CheckpointInfo info;
  info.run_id = run_id;
  info.step = step;
  info.model = "toy";
  info.type = type_;
  info.seed = 0xfedcba9876543210;
  info.position = {{"epoch", 3}, {"next_sample", UINT64_MAX}};
  return info;
}
fs::path TrainingRig::save(const fs::path& saves, uint64_t step) {
  return save_checkpoint({saves, log}, info(step), space, *offloader, log);
}

CheckpointInfo TrainingRig::load(const fs::path& path) {
  return load_checkpoint(path, "toy", space, *offloader, log);
}

bool TrainingRig::has_logged(const std::string& fragment) const {
  for (const MemoryLog::Line& line : log.lines()) {
    if (line.text.find(fragment) != std::string::npos) return true;
  }
  return false;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.flush().good()) << path;
}

std::vector<std::string> hidden_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') || name.ends_with(".new")) names.push_back(name);
  }
  return names;
}

SmallFileSystem::SmallFileSystem(const std::string& size) {
  if (mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0)
    reason_ = std::strerror(errno);
}

SmallFileSystem::~SmallFileSystem() {
  if (reason_.empty()) umount2(folder_.path().c_str(), MNT_DETACH);
}

}  // namespace terrace::checkpoint_tests
