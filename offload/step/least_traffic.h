// least_traffic(): the least traffic of a training step for the budgets of a plan.
#pragma once

#include <terrace/memory/space/schedule.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/update/state_homes.h>
#include <terrace/offload/watch/counters.h>

namespace terrace {

// The bound for a step with this schedule that begins as `start` says.
TrafficBound least_traffic(const RunContext& run, const StateHomes& homes, const Schedule& schedule,
                           StepStart start);

}  // namespace terrace
