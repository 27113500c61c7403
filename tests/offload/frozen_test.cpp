// Training small adapters beside a large frozen model: what is frozen is read and never written.
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "offload/toy_training.h"
#include "support/offloaders.h"

namespace terrace::offload_frozen_test {
namespace {

constexpr uint32_t kLayers = 12;
constexpr uint64_t kFrozenBytes = kLayers * 2 * kTileElements * bytes_of(DataType::bf16);
constexpr uint64_t kAdapterBytes = kTileElements * bytes_of(DataType::bf16);

// A frozen weight of two chunks and a small adapter for every layer; all adapters share one chunk.
std::vector<TensorSpec> tensors() {
  std::vector<TensorSpec> list;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    list.push_back({fmt::format("layer{}.weight", layer), {2, kTileElements}, DataType::bf16, false, 0, 1});
    list.push_back({fmt::format("layer{}.adapter", layer), {4, 64}, DataType::bf16, true, 0, 1});
  }
  return list;
}

void run_micro_batch(ParameterAccess& access) {
  const auto use = [&](uint32_t layer, UseKind kind) {
    const std::vector<TensorId> ids = {TensorId{2 * layer}, TensorId{2 * layer + 1}};
    const Lease lease(access, fmt::format("layer{}/{}", layer, kind == UseKind::forward ? "f" : "b"), ids,
                      kind);
    if (kind == UseKind::forward || lease.parameter<std::byte>(ids[0]) == nullptr) return;
    // The gradient depends on both weights.
    const float frozen = toy::load(lease.parameter<std::byte>(ids[0]), 7, DataType::bf16);
    for (uint64_t e = 0; e < 256; ++e) {
      const float own = toy::load(lease.parameter<std::byte>(ids[1]), e, DataType::bf16);
      toy::store(lease.gradient(ids[1]).data, e, DataType::bf16, own * 0.5f + frozen);
    }
  };
  for (uint32_t layer = 0; layer < kLayers; ++layer) use(layer, UseKind::forward);
  for (uint32_t layer = kLayers; layer-- > 0;) use(layer, UseKind::backward);
}

class Rig {
 public:
  Rig(Placement placement, uint32_t spare_slots) : space_(tensors(), kTileElements) {
    UseRecorder recorder;
    run_micro_batch(recorder);
    OffloadOptions options;
    options.parameters = options.states = placement;
    options.parameter_paths = options.state_paths = {{folder_.path()}};
    const MemoryPlan roomy = testing::take_least_budgets(options, space_, recorder.trace());
    options.device_budget_bytes += spare_slots * roomy.slot_bytes;
    device_ =
        std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes, true, 0, 0});
    offloader_ = std::make_unique<Offloader>(space_, options, recorder.trace(), *device_, workers_, log_);
    toy::initialise(*offloader_);
  }

  OffloadCounters step() {
    const OffloadCounters before = offloader_->report().counters();
    offloader_->begin_step();
    run_micro_batch(*offloader_);
    offloader_->end_micro_batch();
    const std::vector<OptimizerSettings> groups = toy::groups();
    EXPECT_TRUE(offloader_->update({groups, ++step_, 0}).applied);
    return offloader_->report().counters() - before;
  }

  std::vector<std::byte> all_parameters() { return testing::parameters_of(*offloader_, space_); }

  const Offloader& offloader() const { return *offloader_; }

 private:
  FlatSpace space_;
  ScratchFolder folder_;
  MemoryLog log_;
  Workers workers_{2};
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
  uint64_t step_ = 0;
};

TEST(FrozenParameters, AreReadAndNeverWritten) {
  Rig rig(Placement::nvme, 0);
  for (int step = 0; step < 3; ++step) {
    const OffloadCounters moved = rig.step();
    EXPECT_EQ(moved.param_write_bytes, 0u);  // the adapters share a host slot with their gradient
    EXPECT_EQ(moved.record_write_bytes, RecordLayout{}.tile_bytes());
    EXPECT_EQ(moved.d2h_bytes, kAdapterBytes);
    EXPECT_GE(moved.param_read_bytes, kFrozenBytes);
  }
}

TEST(FrozenParameters, StayOnTheDeviceFromStepToStep) {
  Rig rig(Placement::nvme, 2 * kLayers + 2);  // room for everything
  rig.step();
  for (int step = 0; step < 3; ++step) {
    const OffloadCounters moved = rig.step();
    EXPECT_EQ(moved.h2d_bytes, kAdapterBytes);
    EXPECT_EQ(moved.param_read_bytes, 0u);
    EXPECT_EQ(rig.offloader().report().traffic_bound().h2d_bytes, kAdapterBytes);
  }
}

TEST(FrozenParameters, CrossTheLinkAsRarelyAsTheDeviceAllows) {
  Rig rig(Placement::cpu, 9);
  rig.step();
  uint64_t moved_bytes = 0;
  for (int step = 0; step < 6; ++step) moved_bytes += rig.step().h2d_bytes;
  const uint64_t bound = 6 * rig.offloader().report().traffic_bound().h2d_bytes;
  EXPECT_GE(moved_bytes, bound);
  EXPECT_LE(static_cast<double>(moved_bytes), 1.1 * static_cast<double>(bound));
  EXPECT_LT(bound, 6 * 2 * kFrozenBytes);
}

TEST(FrozenParameters, PlacementDoesNotChangeABit) {
  std::vector<std::byte> expected;
  for (const Placement placement : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const uint32_t spare : {0u, 5u, 2 * kLayers + 2}) {
      Rig rig(placement, spare);
      for (int step = 0; step < 3; ++step) rig.step();
      const std::vector<std::byte> actual = rig.all_parameters();
      if (expected.empty()) expected = actual;
      EXPECT_EQ(actual, expected) << name_of(placement) << " " << spare;
    }
  }
}

}  // namespace
}  // namespace terrace::offload_frozen_test
