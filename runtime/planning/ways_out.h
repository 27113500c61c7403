// What to do about a run that does not fit: which tier is short of how much, and changes of the configuration
// with which it fits, each found by planning the run with it. Nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/models/model_config.h>

namespace terrace {

// A configuration that fits, and what is other in it, as flags where there are some.
struct WayOut {
  std::string change;  // "--device-memory 96MiB"
  std::string effect;  // "19.4 MiB more"
  TrainConfig config;
  ModelConfig model;
};

struct Shortage {
  std::string tier;            // "device", "host", "device and host"
  uint64_t missing_bytes = 0;  // the least that would do is so much more
  std::vector<WayOut> ways;    // as many as were wanted, where there are so many
};

// Of a run for which set_up_training() throws Error(capacity). What else it throws for a change is none of
// the ways. `machine_bytes` bounds the budgets together that are suggested.
Shortage find_ways_out(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                       uint64_t machine_bytes, size_t wanted = 2);

}  // namespace terrace
