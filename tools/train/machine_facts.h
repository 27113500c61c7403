// What this machine is, in a few lines for people. `terrace report` has the whole of it.
#pragma once

#include <string>
#include <vector>

#include <terrace/runtime/observe/page/run_record.h>

namespace terrace {

// As /proc/cpuinfo names it.
std::string cpu_name();

std::vector<ReportFact> machine_facts();

}  // namespace terrace
