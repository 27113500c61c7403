// Picks the next token from logits: greedy, or drawn with temperature, top-k and nucleus (top-p, Holtzman et
// al., 2020). It is a pure function of its arguments.
#pragma once

#include <cstdint>
#include <span>

namespace terrace {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the most likely token; on a tie the lowest id
  uint32_t top_k = 0;        // only among the k most likely; 0: all
  double top_p = 1.0;        // only among the fewest most likely whose probabilities reach this sum
};

// `uniform` is in [0, 1). Throws Error(cancelled) when a logit is not a number: the weights are broken.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace terrace
