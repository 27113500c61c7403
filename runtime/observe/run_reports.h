// What a training loop reports: a step, the end of an update, and a change of the host budget.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/error.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

struct StepReport {
  uint64_t step = 0;  // counts from 1
  double loss = 0;    // mean over the step's tokens, nats per token
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  // fp16: gradients (or the loss) overflowed, and weights and moments are those of the step before. Such a
  // step advances neither the optimizer's count of updates nor the schedule.
  bool skipped = false;
  UpdateMode update_mode = UpdateMode::after_backward;  // the mode of this step's update
  double loss_scale = 1;                                // the scale of this step's gradients
  double next_loss_scale = 1;                           // the scale of the next step
  uint64_t tokens = 0;
  uint64_t samples = 0;  // sequences in all steps of the whole run so far, this one included
  // The step's time with that of keeping the state before it; the sum of moved.time, which shows its causes.
  uint64_t total_ns = 0;
  uint64_t keeping_ns = 0;  // the part for commits and checkpoints between the step before and this one
  uint64_t forward_backward_ns = 0;
  uint64_t forward_ns = 0;  // the part until backward first asks for parameters, in every micro-batch
  uint64_t update_ns = 0;
  // Everything that moved in this step. In next_forward this includes the end of the step before's update.
  OffloadCounters moved;
};

// The cost of finishing a pending update.
struct FinishedUpdate {
  uint64_t ns = 0;
  OffloadCounters moved;
};

// The result of a change of the host budget.
struct HostBudgetChange {
  uint64_t budget_bytes = 0;  // in force now
  uint32_t kept_chunks = 0;   // chunks whose optimizer states are in host memory now
  uint64_t read_bytes = 0;    // states that came in
  uint64_t write_bytes = 0;   // states that left and that the tier did not have
  uint64_t ns = 0;
  // Why the budget was refused. Below the run's need nothing changes; without the system's memory it may
  // change in part.
  std::optional<Error> refusal;
};
// Sets the host budget of `offloader` between two steps, when no update is pending: what HostBudget::set()
// moved, and its refusal. Throws the failure of moving records.
HostBudgetChange change_host_budget(Offloader& offloader, uint64_t bytes);

}  // namespace terrace
