// Shows the status of a running job as a block of text for people.
#pragma once

#include <string>

#include <terrace/runtime/observe/control/job_status.h>

namespace terrace {

// Returns lines with newlines; no line depends on a terminal.
std::string job_view(const JobStatus& status);

}  // namespace terrace
