// The results of `terrace bench copy`, in words and as JSON. The code here must never measure.
#pragma once

#include <string>

#include "measure/bench_copy_run.h"

namespace terrace {

std::string copy_report_text(const CopyBenchPlan& plan, const CopyBenchResult& result);
std::string copy_report_json(const CopyBenchPlan& plan, const CopyBenchResult& result);

}  // namespace terrace
