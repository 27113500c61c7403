// Schedules for the tests of the simulator: seeded ones of any shape, and a training step as Terrace's own
// looks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <terrace/sim/sim_schedule.h>

namespace terrace::sim_test {

struct RandomShape {
  uint32_t items = 6;
  uint32_t uses = 12;
  uint32_t most_bytes = 1;  // sizes are 1 to this
  uint32_t items_per_use = 2;
  uint32_t dirty_percent = 0;    // of the touches that change what they use
  uint32_t make_percent = 0;     // that make it
  uint32_t foreign_percent = 0;  // of the uses that are in the tier below
  uint64_t most_occupied = 0;
};

inline uint64_t below(std::mt19937_64& random, uint64_t count) {
  return random() % count;
}

// Items live in tier 1 and are used in tier 0, and some in tier 1.
inline SimSchedule random_schedule(uint64_t seed, const RandomShape& shape) {
  std::mt19937_64 random(seed);
  SimSchedule schedule{"seed " + std::to_string(seed), {}, {}};
  for (uint32_t i = 0; i < shape.items; ++i)
    schedule.items.push_back(
        {"item" + std::to_string(i), 1 + below(random, shape.most_bytes), SimRole::param, 1});
  for (uint32_t u = 0; u < shape.uses; ++u) {
    SimUse use{"use" + std::to_string(u), 0, {}, {}, {}, 1000, {below(random, shape.most_occupied + 1)}};
    if (below(random, 100) < shape.foreign_percent) use.tier = 1;
    std::vector<uint32_t> items(shape.items);
    std::iota(items.begin(), items.end(), 0u);
    for (uint32_t i = 0; i < shape.items; ++i) std::swap(items[i], items[i + below(random, shape.items - i)]);
    items.resize(1 + below(random, shape.items_per_use));
    std::sort(items.begin(), items.end());
    for (const uint32_t i : items) {
      const uint64_t dice = below(random, 100);
      auto& list = dice < shape.dirty_percent                        ? use.changes
                   : dice < shape.dirty_percent + shape.make_percent ? use.makes
                                                                     : use.reads;
      list.push_back(i);
    }
    schedule.uses.push_back(std::move(use));
  }
  return schedule;
}

inline SimMachine two_tiers(uint64_t capacity_bytes, uint32_t prefetch_depth = 0) {
  return {{{"device", capacity_bytes}, {"host", kUnboundedBytes}}, {{1e9, 1e9, 0}}, prefetch_depth};
}

// The most bytes that a use needs in tier 0, with what else is there.
inline uint64_t least_capacity(const SimSchedule& schedule) {
  uint64_t least = 0;
  for (const SimUse& use : schedule.uses) {
    uint64_t bytes = use.occupied_bytes.empty() ? 0 : use.occupied_bytes[0];
    if (use.tier == 0) {
      for (const auto* list : {&use.reads, &use.changes, &use.makes}) {
        for (const uint32_t i : *list) bytes += schedule.items[i].bytes;
      }
    }
    least = std::max(least, bytes);
  }
  return least;
}

// A step of `layers` layers with `accumulation` micro-batches: parameters forward and back in tier 0,
// gradients made there and changed by every later micro-batch, then an update of parameters, gradients and
// states in tier 1. Parameters and gradients have homes in tier 1, states in the tier below.
inline SimSchedule training_step(uint32_t layers, uint32_t accumulation, uint64_t param_bytes,
                                 uint64_t state_bytes) {
  SimSchedule schedule{"training", {}, {}};
  for (uint32_t l = 0; l < layers; ++l)
    schedule.items.push_back({"param" + std::to_string(l), param_bytes, SimRole::param, 1});
  for (uint32_t l = 0; l < layers; ++l)
    schedule.items.push_back({"grad" + std::to_string(l), param_bytes, SimRole::grad, 1});
  for (uint32_t l = 0; l < layers; ++l)
    schedule.items.push_back({"state" + std::to_string(l), state_bytes, SimRole::state, 2});
  for (uint32_t m = 0; m < accumulation; ++m) {
    const std::string prefix = "mb" + std::to_string(m) + "/";
    for (uint32_t l = 0; l < layers; ++l)
      schedule.uses.push_back({prefix + "forward" + std::to_string(l), 0, {l}, {}, {}, 1'000'000, {l}});
    for (uint32_t l = layers; l-- > 0;) {
      SimUse use{prefix + "backward" + std::to_string(l), 0, {l}, {}, {}, 2'000'000, {l}};
      (m == 0 ? use.makes : use.changes).push_back(layers + l);
      schedule.uses.push_back(std::move(use));
    }
  }
  for (uint32_t l = 0; l < layers; ++l)
    schedule.uses.push_back(
        {"update" + std::to_string(l), 1, {layers + l}, {l, 2 * layers + l}, {}, 500'000, {}});
  return schedule;
}

}  // namespace terrace::sim_test
