// What a store of gradients is made on when it is tested alone: the rig of homes, slots of a device, and
// gradients of one value.
#pragma once

#include <gtest/gtest.h>

#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/landing/gradient_arithmetic.h>

#include "offload/homes_rig.h"

namespace terrace {

struct GradientRig : HomesRig {
  explicit GradientRig(SimulatedDeviceOptions options = {.budget_bytes = 8 * kMiB}) : HomesRig(options) {
    accumulating.micro_batches = 2;
    plan.device_slots = kChunks;
    plan.accumulator_slot_bytes = kTileElements * sizeof(float);
    cache = std::make_unique<DeviceCache>(space, device, plan, Placement::cpu, PolicyKind::opt, states, watch,
                                          decisions);
    for (std::byte*& slot : slots) slot = take(plan.accumulator_slot_bytes);
  }
  std::byte* take(uint64_t bytes) { return arena.take(bytes, "a test").data(); }
  GradientSums sums() { return {shards, arena.take(kChunks * sizeof(double), "sums"), false}; }
  std::unique_ptr<GradientArithmetic> arithmetic() {
    return std::make_unique<ArithmeticByWorkers>(space, sums(), accumulating, workers, InstructionSet::scalar,
                                                 watch);
  }
  void make_gradient(ChunkId chunk, float value) { terrace::make_gradient(*cache, chunk, value); }
  // All of the chunk lands, in one of `micro_batches`.
  GradientLanding landing(ChunkId chunk, uint32_t micro_batch = 0, uint32_t micro_batches = 1) {
    whole = {0, kTileElements, micro_batch == 0};
    return {chunk, micro_batch, {&whole, 1}, micro_batch == 0, micro_batch + 1 == micro_batches, true};
  }

  TensorStates states{space};
  Decisions decisions{nullptr};
  OffloadOptions accumulating;  // sums are fp32
  GradientRun whole;
  std::unique_ptr<DeviceCache> cache;
  std::vector<std::byte*> slots = std::vector<std::byte*>(kChunks);
};

template <typename Element>
bool all_are(const std::byte* bytes, Element value) {
  const auto* const elements = reinterpret_cast<const Element*>(bytes);
  return std::all_of(elements, elements + kTileElements,
                     [value](Element element) { return std::memcmp(&element, &value, sizeof(value)) == 0; });
}

}  // namespace terrace
