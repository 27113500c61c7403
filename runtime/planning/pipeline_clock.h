// PipelineClock: how long a step of the stages of a pipeline takes (1F1B), from the times of their passes and
// the bytes of their messages. It goes through the schedule of python/terrace/pipe/schedule.py event by
// event. Pure arithmetic: the same question has the same answer each time.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

// The passes of a stage in a step, in seconds, by micro-batch.
struct StagePasses {
  std::vector<double> forward;
  std::vector<double> backward;
  double update = 0;  // behind them, when all stages have come so far
  uint32_t host = 0;  // stages of one host share what it sends and receives
};

// What is between two stages. Seconds, and bytes per second; a rate of 0 takes no time.
struct StageLink {
  double message_seconds = 0;  // of a message, beside its bytes
  double bytes = 0;
  double delay = 0;  // how long anything is on its way
};

struct PipelineQuestion {
  std::vector<StagePasses> stages;  // all have as many micro-batches
  double activation_bytes = 0;      // of a micro-batch, and of its gradient on the way back
  double tied_bytes = 0;            // of a table that the first and the last stage have; 0: they have none
  StageLink network;                // between stages of different hosts
  StageLink host_link;              // between those of one
};

struct PipelineTime {
  double step_seconds = 0;
  std::vector<double> idle_seconds;  // by stage: neither passes nor the update
  double line_seconds = 0;           // for which the busiest direction of a host's network is busy
};

// The part of a step in which a stage is idle if all passes take the same time and messages none:
// (S - 1) / (M + S - 1). Narayanan et al., PipeDream (2019).
double bubble_part(uint32_t stages, uint32_t micro_batches);

class PipelineClock {
 public:
  // The question outlives the clock.
  explicit PipelineClock(const PipelineQuestion& question);
  // Goes through a few steps and returns the time of the last one.
  PipelineTime run() const;

 private:
  const PipelineQuestion& question_;
};

}  // namespace terrace
