// ReferenceMachine: a typical machine. On its rates the size of chunks is chosen, and the plan rests on them
// for a machine that is not at hand.
#pragma once

#include <cstddef>

#include <terrace/base/workers.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/planning/machine_rates.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

struct ReferenceMachine {
  size_t threads = 1;    // that compute
  bool has_gpu = false;  // beside them; else they simulate the device
};

// Returns the machine of a run with these threads on this device; null: the simulated one.
ReferenceMachine reference_machine(const Workers& workers, const ComputeDevice* compute);

// Returns its rates, with the measured rates of the drives (PlacementConfig::measured_rates) where they are
// known. Ranks have none.
MachineRates reference_rates(const ReferenceMachine& machine, const PlacementConfig& placement);

// Returns the multiplications and additions of its operations in a second.
double reference_flops(const ReferenceMachine& machine);

}  // namespace terrace
