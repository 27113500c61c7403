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
  double loss = 0;                      // of the step, nats per token
  std::optional<double> held_out_loss;  // of the last evaluation
  double learning_rate = 0;
  double gradient_norm = 0;
  double tokens_per_second = 0;
  double seconds_left = 0;
};

// At most `columns` wide (0: any width): first in shorter words, then without what stands last.
std::string progress_line(const RunProgress& progress, size_t columns);

// "12 min 30 s"
std::string remaining_text(double seconds);

}  // namespace terrace
