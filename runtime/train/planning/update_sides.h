// What offload_optimizer.ratio "auto" comes to: rates of the two sides of the update, measured for a moment
// before anything is planned, by which updated_on_device() (offload/plan/update_side.h) divides the chunks.
// They are measured once; from then on they are settings like any others, and no bit depends on them.
#pragma once

#include <filesystem>
#include <string>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

// Where the ratio is "auto": gives config.placement its rates, or leaves them out and the processor with all,
// and returns what was found, in words; else an empty text. `compute` is where it is to run; on the simulated
// device, which null stands for, the device's part would be the processor's own work, and nothing is
// measured. `replayed`: the decisions that the run follows, whose sides it takes; empty: there are none.
// On a GPU it takes a moment, 128 MiB of host memory, and what measure_link_rates() takes there. Throws
// Error: config for a file that cannot be read, device, capacity.
std::string settle_update_sides(TrainConfig& config, const ComputeDevice* compute,
                                const std::filesystem::path& replayed);

// A line for people: what was found, as above, and what it comes to in this run.
std::string update_sides_text(const std::string& found, const TrainConfig& config,
                              const TrainingSetup& setup);

}  // namespace terrace
