// The line that a run shows while it trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace terrace {

struct RunProgress {
  uint64_t step = 0;
  uint64_t steps = 0;
  double loss = 0;                      // loss of the step, in nats per token
  std::optional<double> held_out_loss;  // loss of the last evaluation
  double learning_rate = 0;
  double gradient_norm = 0;
  double tokens_per_second = 0;
  double seconds_left = 0;
};

// Returns a loss with four decimals; one that is too large for them to mean anything has four digits in all.
std::string loss_text(double loss);

// Returns a line of at most `columns` columns (0: any width). A line that is too long gets shorter words, and
// then loses parts: the gradient norm first, then the learning rate, the tokens per second, the held-out
// loss, the time that is left.
std::string progress_line(const RunProgress& progress, size_t columns);

}  // namespace terrace
