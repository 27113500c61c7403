// The results of `terrace bench adam`, in words and as JSON. The code here must never measure.
#pragma once

#include <string>
#include <vector>

#include "measure/bench_adam_run.h"

namespace terrace {

std::string adam_report_text(const AdamPlan& plan, const std::vector<AdamThreads>& results);
std::string adam_report_json(const AdamPlan& plan, const std::vector<AdamThreads>& results);

}  // namespace terrace
