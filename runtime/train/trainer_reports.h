// What a Trainer reports: of a step, of the end of an update, and of a change of the host budget.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/error.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

struct StepReport {
  uint64_t step = 0;  // counts from 1
  double loss = 0;    // mean over the step's tokens, nats per token
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  // fp16: gradients overflowed (or the loss did), and weights and moments are those of the step before.
  // Neither the optimizer's count of updates nor the schedule advances with such a step.
  bool skipped = false;
  UpdateMode update_mode = UpdateMode::after_backward;  // of this step's update
  double loss_scale = 1;                                // with which the gradients were computed
  double next_loss_scale = 1;                           // of the next step
  uint64_t tokens = 0;
  // With that of keeping the state before the step; the sum of moved.time, which says where it went.
  uint64_t total_ns = 0;
  uint64_t keeping_ns = 0;  // of it, for commits and checkpoints between the step before and this one
  uint64_t forward_backward_ns = 0;
  uint64_t forward_ns = 0;  // the part until backward first asks for parameters, in every micro-batch
  uint64_t update_ns = 0;
  // In this step, whichever step it belongs to: in next_forward an update ends in the step after its own.
  OffloadCounters moved;
};

// What the end of an update that was pending took.
struct FinishedUpdate {
  uint64_t ns = 0;
  OffloadCounters moved;
};

// What came of a change of the host budget.
struct HostBudgetChange {
  uint64_t budget_bytes = 0;  // in force now
  uint32_t kept_chunks = 0;   // whose optimizer states are in host memory now
  uint64_t read_bytes = 0;    // of states that came in
  uint64_t write_bytes = 0;   // of states that left and that the tier did not have
  uint64_t ns = 0;
  // Less than the run needs: nothing has changed. Or memory that the system has not got: some of it may have.
  std::optional<Error> refusal;
};

}  // namespace terrace
