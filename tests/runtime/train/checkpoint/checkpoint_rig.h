// A toy trainer whose state fills several blocks of a checkpoint, and small helpers of the checkpoint tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/train/checkpoint/checkpoint.h>

#include "offload/toy_training.h"
#include "support/expect_error.h"

namespace terrace::checkpoint_tests {

namespace fs = std::filesystem;
using testing::expect_error;

inline constexpr uint64_t kRun = 0x0123456789abcdef;

struct RigOptions {
  Placement parameters = Placement::cpu;
  Placement states = Placement::cpu;
  DataType type = DataType::bf16;
  uint32_t accumulation = 1;
  uint64_t chunk_elements = kTileElements;
  bool tight = true;
  bool with_frozen = false;
  uint64_t unused_columns = 1000;  // of a tensor that no operation uses
  RecordLayout layout = {};
  OptimizerKind kind = OptimizerKind::adam;
};

inline std::vector<TensorSpec> tensors(const RigOptions& options) {
  std::vector<TensorSpec> list = toy::tensors(options.type, options.with_frozen);
  list.push_back({"unused", {300, options.unused_columns}, options.type, true, 0, 1});
  if (options.with_frozen) list.push_back({"frozen_unused", {500, 1001}, options.type, false, 0, 1});
  return list;
}

class TrainingRig {
 public:
  explicit TrainingRig(const RigOptions& rig)
      : options_(rig), specs(tensors(rig)), space(specs, rig.chunk_elements), workers_(2) {
    const std::vector<TensorUse> uses = toy::trace(specs, rig.accumulation);
    OffloadOptions options;
    options.parameters = rig.parameters;
    options.states = rig.states;
    options.parameter_paths = options.state_paths = {{tier_.path()}};
    options.accumulation_steps = rig.accumulation;
    options.record_layout = rig.layout;
    options.lock_host_memory = false;
    options.device_budget_bytes = options.host_budget_bytes = kGiB;
    const MemoryPlan roomy = plan_memory(space, uses, options);
    options.device_budget_bytes = rig.tight ? roomy.device_minimum_bytes : useful_device_bytes(roomy);
    options.host_budget_bytes =
        rig.tight ? roomy.host_minimum_bytes : (roomy.host_minimum_bytes + roomy.host_bytes) / 2;
    device_ =
        std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes, false, 0, 0});
    offloader = std::make_unique<Offloader>(space, options, uses, *device_, workers_, log);
  }

  TrainingRig& initialise() {
    offloader->initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = toy::initial_value(index_of(tensor), first + e);
    });
    return *this;
  }

  TrainingRig& train(uint64_t first_step, uint64_t last_step) {
    for (uint64_t step = first_step; step <= last_step; ++step) {
      offloader->begin_step();
      for (uint32_t m = 0; m < options_.accumulation; ++m) {
        toy::run_micro_batch(*offloader, specs, m);
        offloader->end_micro_batch();
      }
      std::vector<OptimizerSettings> groups = toy::groups();
      for (OptimizerSettings& group : groups) group.kind = options_.kind;
      offloader->update({groups, step, 0});
    }
    return *this;
  }

  CheckpointInfo info(uint64_t step) const {
    CheckpointInfo info;
    info.run_id = run_id;
    info.step = step;
    info.model = "toy";
    info.type = options_.type;
    info.seed = 0xfedcba9876543210;
    info.position = {{"epoch", 3}, {"next_sample", UINT64_MAX}};
    return info;
  }
  uint64_t run_id = kRun;
  fs::path save(const fs::path& folder, uint64_t step) {
    return save_checkpoint({folder, log}, info(step), space, *offloader, log);
  }
  CheckpointInfo load(const fs::path& path) { return load_checkpoint(path, "toy", space, *offloader, log); }

  // Everything a step depends on: records, and the parameters as operations see them.
  std::vector<std::byte> state() {
    std::vector<std::byte> bytes;
    const auto append = [&](std::span<const std::byte> more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    offloader->export_records(append);
    for (uint32_t t = 0; t < specs.size(); ++t) {
      std::vector<std::byte> values(specs[t].element_count() * bytes_of(specs[t].type));
      offloader->read_parameter(TensorId{t}, values);
      append(values);
    }
    return bytes;
  }

  bool has_logged(const std::string& fragment) const {
    for (const MemoryLog::Line& line : log.lines()) {
      if (line.text.find(fragment) != std::string::npos) return true;
    }
    return false;
  }

 private:
  RigOptions options_;

 public:
  std::vector<TensorSpec> specs;
  FlatSpace space;
  MemoryLog log;

 private:
  toy::ScratchFolder tier_;
  Workers workers_;
  std::unique_ptr<SimulatedDevice> device_;

 public:
  std::unique_ptr<Offloader> offloader;
};

inline std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.flush().good()) << path;
}

// Names that begin with a point: what a finished save must not leave.
inline std::vector<std::string> hidden_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') || name.ends_with(".new")) names.push_back(name);
  }
  return names;
}

// A file system of a few MiB in memory, for the time of a test; only root may make one.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& size) {
    if (mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0)
      reason_ = std::strerror(errno);
  }
  ~SmallFileSystem() {
    if (reason_.empty()) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  const fs::path& path() const { return folder_.path(); }
  const std::string& refusal() const { return reason_; }

 private:
  toy::ScratchFolder folder_;
  std::string reason_;
};

}  // namespace terrace::checkpoint_tests
