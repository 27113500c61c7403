// What tests do with an Offloader of any model: budgets that follow from its plan, and all it holds as bytes.
#pragma once

#include <span>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/offload/offloader.h>

namespace terrace::testing {

// Makes the options those of a rank; null: there is one.
inline void set_ranks(OffloadOptions& options, Communicator* communicator) {
  options.hooks.communicator = communicator;
  options.ranks = communicator != nullptr ? communicator->size() : 1;
  options.rank = communicator != nullptr ? communicator->rank() : 0;
  if (communicator != nullptr) options.hosts = layout_of(communicator->places()).value().hosts;
}

// Raises both budgets beyond any use, and says what the run would take then; host memory stays unlocked.
inline MemoryPlan plan_roomy(OffloadOptions& options, const FlatSpace& space,
                             std::span<const TensorUse> uses) {
  options.lock_host_memory = false;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  return plan_memory(space, uses, options);
}

// Sets the least budgets that do, and returns the plan without limits.
inline MemoryPlan take_least_budgets(OffloadOptions& options, const FlatSpace& space,
                                     std::span<const TensorUse> uses) {
  const MemoryPlan roomy = plan_roomy(options, space, uses);
  options.device_budget_bytes = roomy.device_minimum_bytes;
  options.host_budget_bytes = roomy.host_minimum_bytes;
  return roomy;
}

// All tiles in flat order; of several ranks the first one has them, and the others nothing.
inline std::vector<std::byte> records_of(Offloader& offloader) {
  std::vector<std::byte> all;
  offloader.state().export_records(
      [&](std::span<const std::byte> tiles) { all.insert(all.end(), tiles.begin(), tiles.end()); });
  return all;
}

inline std::vector<std::byte> parameter_of(Offloader& offloader, const SpaceLayout& space, TensorId tensor) {
  std::vector<std::byte> bytes(space.place(tensor).elements * bytes_of(space.tensor(tensor).type));
  offloader.state().read_parameter(tensor, bytes);
  return bytes;
}

// All tensors in order.
inline std::vector<std::byte> parameters_of(Offloader& offloader, const SpaceLayout& space) {
  std::vector<std::byte> all;
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const std::vector<std::byte> bytes = parameter_of(offloader, space, TensorId{t});
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// Records, then parameters: everything that the next step depends on.
inline std::vector<std::byte> state_of(Offloader& offloader, const SpaceLayout& space) {
  std::vector<std::byte> all = records_of(offloader);
  const std::vector<std::byte> parameters = parameters_of(offloader, space);
  all.insert(all.end(), parameters.begin(), parameters.end());
  return all;
}

}  // namespace terrace::testing
