// The machine of a replay by `terrace sim`, as its flags describe it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/sim/sim_schedule.h>

#include "command.h"

namespace terrace {

struct SimMachineFlags {
  std::vector<std::string> tiers;  // from the top; they replace the flags for three named tiers
  std::string device_memory, host_memory;
  std::string h2d, d2h, link_latency;
  std::string nvme_read, nvme_write, nvme_latency, nvme_path;
  std::optional<uint32_t> prefetch_depth;

  // Adds the flags; this object must stay where it is.
  void add_to(const FlagGroup& group);
};

// Throws Error(config) for flags that are missing, contradict each other or cannot be read.
SimMachine sim_machine(const SimMachineFlags& flags);

}  // namespace terrace
