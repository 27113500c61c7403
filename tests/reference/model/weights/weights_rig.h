// A memory manager over tensors of a test, small enough that everything moves.
#pragma once

#include <memory>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

#include "support/offloaders.h"
#include "support/scratch_folder.h"

namespace terrace::weights_tests {

class WeightsRig {
 public:
  WeightsRig(std::vector<TensorSpec> specs, Placement placement, uint64_t chunk_elements = kTileElements)
      : tensors(std::move(specs)), space(tensors, chunk_elements), workers_(1) {
    OffloadOptions options;
    options.parameters = options.states = placement;
    options.parameter_paths = options.state_paths = {{tier_.path()}};
    const MemoryPlan roomy = testing::take_least_budgets(options, space, {});
    if (placement == Placement::none) options.device_budget_bytes = useful_device_bytes(roomy);
    device_ =
        std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes, false, 0, 0});
    offloader =
        std::make_unique<Offloader>(space, options, std::span<const TensorUse>{}, *device_, workers_, log);
  }

  // Every value of a tensor, as export_values() gives it. Each element must come once, in order.
  std::vector<float> values(TensorId wanted) {
    std::vector<float> all;
    offloader->state().export_values([&](TensorId tensor) { return tensor == wanted; },
                                     [&](TensorId, uint64_t first, std::span<const float> run) {
                                       EXPECT_EQ(first, all.size());
                                       all.insert(all.end(), run.begin(), run.end());
                                     });
    return all;
  }

  std::vector<TensorSpec> tensors;
  FlatSpace space;
  MemoryLog log;

 private:
  ScratchFolder tier_;
  Workers workers_;
  std::unique_ptr<SimulatedDevice> device_;

 public:
  std::unique_ptr<Offloader> offloader;
};

}  // namespace terrace::weights_tests
