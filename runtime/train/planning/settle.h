// settle(): from the configuration that was resolved to the one that a run on this machine has. Every program
// that makes a run, plans one or shows its configuration takes it from here, and nobody else writes into a
// configuration because of what a machine is. Budgets and chunks are not settled: a plan decides them.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <terrace/base/log.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

struct RunMachine {
  // The folder in which `terrace tune` remembers what it measured; empty: it measured nothing.
  std::filesystem::path tuning = {};
  const ComputeDevice* compute = nullptr;  // where it is to run; null: the simulated device
  std::filesystem::path replayed = {};     // the decisions that it follows; empty: it decides by itself
};

// Settles, and writes each value with its origin into TrainConfig::resolved:
//   terrace.device       "auto": where it is to run
//   engine, block size,  where the configuration is silent and each of its paths was tuned: what was measured
//   depth and threads    there; the measured rates of the paths that were
//   aio.use_gds          "auto": whether the device can read parameters on nvme by itself
//   offload_optimizer's  "auto": what both sides of the update do in a second, measured on this machine or as
//   ratio                the decisions have it; or that the processor updates all
// No bit of a training depends on any of them. `log` is told what was measured by `terrace tune`, and what is
// stale or goes another way than it may have been meant. With the ratio "auto" on a GPU it takes a moment,
// 128 MiB of host memory, and what measure_link_rates() takes there. Throws Error: config where the device
// must read by itself and cannot, or for decisions that cannot be read; io, device, capacity.
TrainConfig settle(TrainConfig config, const RunMachine& machine, Log& log);

// Bytes per second of all these folders of a settled configuration together; 0: they are not known of each.
double measured_rate(const PlacementConfig& placement, std::span<const std::filesystem::path> folders);

// A line for people: what was found of a ratio that is "auto", and what it comes to in this run. Empty where
// the ratio is another.
std::string update_sides_text(const TrainConfig& config, const TrainingSetup& setup);

}  // namespace terrace
