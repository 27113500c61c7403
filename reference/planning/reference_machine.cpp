#include <terrace/reference/planning/reference_machine.h>

#include <filesystem>
#include <set>
#include <vector>

#include <terrace/reference/planning/settle.h>

namespace terrace {
namespace {

constexpr const char* kAssumed = "assumed";
// Multiplications and additions per second, of a thread and of a GPU.
constexpr double kThreadFlops = 45e9;
constexpr double kGpuFlops = 50e12;
// What a chunk takes of a step beside its bytes, in whole steps of many sizes (docs/planning_measured.md).
constexpr double kChunkSeconds = 55e-6;

void take_drives(const PlacementConfig& placement, MachineRates& rates) {
  std::set<std::filesystem::path> paths(placement.state_paths.begin(), placement.state_paths.end());
  paths.insert(placement.parameter_paths.begin(), placement.parameter_paths.end());
  const double known = measured_rate(placement, std::vector(paths.begin(), paths.end()));
  rates.disk_mixed_bytes = known > 0 ? known : 1.7e9;
  rates.disk_read_bytes = 1.5 * rates.disk_mixed_bytes;
  rates.disk_write_bytes = rates.disk_mixed_bytes;
  rates.disk_origin = known > 0 ? "terrace tune" : kAssumed;
}

}  // namespace

ReferenceMachine reference_machine(const Workers& workers, const ComputeDevice* compute) {
  return {workers.thread_count(), facts_of(compute).own_memory.has_value()};
}

MachineRates reference_rates(const ReferenceMachine& machine, const PlacementConfig& placement) {
  const auto threads = static_cast<double>(machine.threads);
  MachineRates rates;
  rates.origin = kAssumed;
  rates.thread_count = machine.threads;
  rates.chunk_seconds = kChunkSeconds;
  rates.copy_bytes = 8e9;
  rates.clear_bytes = 20e9;
  rates.sum_elements = 2e9 * threads;
  rates.accumulate_elements = 1.2e9 * threads;
  rates.update_elements = 1.2e9;
  rates.update_together_elements = 0.6e9 * threads;
  rates.checksum_bytes = 20e9;
  take_drives(placement, rates);
  if (machine.has_gpu) {
    rates.copy_bytes = rates.clear_bytes = 0;  // of a simulated device
    rates.device = DeviceRates{.link = {.to_device = 20e9, .to_host = 20e9, .each_way = 16e9},
                               .clear_bytes = 500e9,
                               .sum_elements = 100e9,
                               .accumulate_elements = 50e9,
                               .update_elements = 20e9};
  }
  return rates;
}

double reference_flops(const ReferenceMachine& machine) {
  return machine.has_gpu ? kGpuFlops : kThreadFlops * static_cast<double>(machine.threads);
}

}  // namespace terrace
