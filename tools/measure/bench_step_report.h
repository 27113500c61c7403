// The results of `terrace bench step`, in words and as JSON. The code here must never measure.
#pragma once

#include <string>

#include "measure/bench_step_run.h"

namespace terrace {

std::string step_report_text(const StepBenchReport& report);
std::string step_report_json(const StepBenchReport& report);

}  // namespace terrace
