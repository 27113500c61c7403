// device_ledger(): what a plan takes of device memory, by use.
#pragma once

#include <vector>

#include <terrace/offload/offloader.h>

namespace terrace {

std::vector<TierUse> device_ledger(const MemoryPlan& plan);

}  // namespace terrace
