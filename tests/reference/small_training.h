// A TrainerRun whose optimizer states are on nvme, for what happens to the host memory of a trainer.
#pragma once

#include <filesystem>
#include <string>

#include "reference/trainer_rig.h"

namespace terrace {

struct SmallTraining : private ScratchFolder, trainer_tests::TrainerRun {
  explicit SmallTraining(const std::string& update = "after_backward", const Clock* clock = nullptr,
                         const std::filesystem::path& system_root = "/",
                         const std::string& memory_pressure = "true")
      : TrainerRun(options_for(ScratchFolder::path(), update, clock, system_root, memory_pressure)) {}

  uint32_t kept() { return trainer->offloader().budget().resident_chunks(); }
  uint64_t slot() { return trainer->plan().memory.record_slot_bytes; }

 private:
  static trainer_tests::RunOptions options_for(const std::filesystem::path& nvme, const std::string& update,
                                               const Clock* clock, const std::filesystem::path& system_root,
                                               const std::string& memory_pressure) {
    trainer_tests::RunOptions run;
    run.nvme = nvme;
    run.update = update;
    run.precision = "true";
    run.clock = clock;
    run.system_root = system_root;
    run.memory_pressure = memory_pressure;
    return run;
  }
};

}  // namespace terrace
