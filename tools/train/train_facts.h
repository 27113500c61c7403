// The header that `terrace train` prints before a run: first what the user chose, then where everything lives
// and what that costs. How it is done is detail.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/log/log_lines.h>

#include "flags/train_flags.h"
#include "train/train_resume.h"

namespace terrace {

// All that is known before there is a trainer.
RunHeader run_header(const TrainFlags& flags, const TrainerOptions& options, const TrainerPlan& plan,
                     const RunStart& start, const TrainingData& data,
                     std::optional<PlanPrediction> prediction);
// Returns the facts as lines of text, each with its newline, of at most `width` columns (0: any length).
std::string training_header(const std::vector<ReportFact>& facts, bool verbose, size_t width);

}  // namespace terrace
