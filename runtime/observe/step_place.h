// Where a step in progress is, in words for a person: "micro-batch 2 of 4, backward, layer 7 of 12".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

struct StepShape {
  uint32_t micro_batches = 1;  // of a step, on this rank
  uint32_t layers = 0;         // of the model
};

// Returns the words for what StepWatch::activity() gives: the key of an operation
// ("mb1/h.6.mlp.fc/backward"), or another activity ("the update"), which is returned as it is; empty for an
// empty activity.
std::string place_in_step(std::string_view activity, const StepShape& shape);

}  // namespace terrace
