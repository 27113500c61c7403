// Shows the status of a running job as a block of text for people.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/runtime/observe/control/job_status.h>

namespace terrace {

// Returns lines with newlines; no line depends on a terminal.
std::string job_view(const JobStatus& status);

// Returns "[#####---------------]  25 %"; "disk" without a budget.
std::string occupancy_bar(uint64_t used_bytes, uint64_t budget_bytes);

}  // namespace terrace
