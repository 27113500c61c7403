// Describes this machine in a few lines for people; `terrace report` has all of it.
#pragma once

#include <string>
#include <vector>

#include <terrace/runtime/observe/log/log_lines.h>

namespace terrace {

// Returns the name as /proc/cpuinfo has it.
std::string cpu_name();

std::vector<ReportFact> machine_facts();

}  // namespace terrace
