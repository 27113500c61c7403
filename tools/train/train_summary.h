// The results of a run, from its log (docs/steps_jsonl.md), as aligned text and as JSON: what `terrace train`
// says at the end and `terrace report` of any log.
#pragma once

#include <string>

#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/page/run_record.h>

namespace terrace {

// The memory of a run of the trainer, with the origins of its budgets.
RunMemory memory_of(Trainer& trainer, const TrainerPlan& plan);

struct SummaryStyle {
  bool verbose = false;
  bool is_own = false;         // a run of this program: it is said how to go on
  std::string tokenizer = {};  // that an export of the model needs, as the user named it; empty: none
};
std::string summary_text(const RunRecord& run, const SummaryStyle& style);
// Returns one JSON object and a newline.
std::string summary_json(const RunRecord& run);

}  // namespace terrace
