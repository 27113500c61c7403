// The placement of a plan for another machine that is given none: the nearest to the device that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/base/workers.h>
#include <terrace/reference/model/compute/compute_device.h>

#include "flags/train_flags.h"

namespace terrace {

// Whether neither a file nor a flag says where parameters and states are.
bool leaves_placement_open(const TrainConfig& config);

struct PlacementSearch {
  std::optional<uint32_t> vocabulary;  // of the data
  const ComputeDevice* compute = nullptr;
  uint64_t disk_bytes = 0;
};

// Gives `flags`, which have an nvme path, the first placement that fits: none before cpu before nvme, and
// states leave the device before parameters. If none fits into memory, takes the one that needs the least;
// if the drives are too small, the one that needs the least of them. Returns the choice in words.
std::string choose_placement(const PlacementSearch& search, Workers& workers, TrainFlags& flags);

}  // namespace terrace
