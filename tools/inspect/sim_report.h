// The results of `terrace sim`, as a table for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include <terrace/sim/lower_bound.h>
#include <terrace/sim/simulation.h>

namespace terrace {

struct SimReport {
  SimSchedule schedule;
  SimMachine machine;
  std::vector<LowerBound> bounds;  // one per link
  std::vector<SimPolicy> policies;
  std::vector<SimResult> results;  // one per policy
};

std::string sim_text(const SimReport& report);
std::string sim_json(const SimReport& report);

}  // namespace terrace
