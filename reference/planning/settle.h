// settle() turns the resolved configuration into that of a run on this machine. Every program that makes a
// run, plans one or shows its configuration calls it, and no other code changes a configuration because of
// the machine. Budgets and chunks are not settled: a plan decides them.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <terrace/base/log.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

struct RunMachine {
  // The folder in which `terrace tune` keeps its measurements; empty: there are none.
  std::filesystem::path tuning = {};
  const ComputeDevice* compute = nullptr;  // where the run computes; null: the simulated device
};

// Settles, and writes each value with its origin into TrainConfig::resolved:
//   terrace.device       "auto": the device on which the run computes
//   engine, block size,  not given and every path tuned: the tuned values; also the measured rates of the
//   depth and threads    tuned paths
//   aio.use_gds          "auto": on if the device can read parameters on nvme by itself
//   offload_optimizer's  "auto": the rates of both sides of the update, measured here; or that the
//   ratio                processor updates everything
// No bit of a training depends on any of them. `log` is told the values from `terrace tune`, and about
// tunings that are stale or may not have the intended effect. With the ratio "auto" on a GPU it takes a
// moment, 128 MiB of host memory, and the memory of measure_link_rates(). Throws Error: config if the device
// must read by itself and cannot; io, device, capacity.
TrainConfig settle(TrainConfig config, const RunMachine& machine, Log& log);

// Returns the sum of the bytes per second of these folders of a settled configuration; 0 if one is unknown.
double measured_rate(const PlacementConfig& placement, std::span<const std::filesystem::path> folders);

// Returns a line for people about a ratio that is "auto": the rates found, and the result in this run. Empty
// if the ratio is not "auto".
std::string update_sides_text(const TrainConfig& config, const TrainingSetup& setup);

}  // namespace terrace
