// What LawTraining makes of a combination of factors, beside what law_training.h declares.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/reference/model/transformer/model.h>

#include "laws/factors.h"
#include "laws/plain_training.h"

namespace terrace::laws {

struct LawSurroundings;

// The model's tensors; `memory` is that of those that are the program's.
std::vector<TensorSpec> tensors_of(const Combination& combination, const Model& model,
                                   std::vector<std::vector<std::byte>>& memory);
// True if every use is inside of another one.
bool nests(const Combination& combination);
OffloadOptions options_of(const Combination& combination, const FlatSpace& space, const DryRun& dry,
                          const LawSurroundings& surroundings);
// What the offloader is told of a step whose uses are `trace`.
std::vector<TensorUse> trace_told(const Combination& combination, std::vector<TensorUse> trace);
DryRun dry_run_of(const Combination& combination, const Model& model, Workers& workers);

}  // namespace terrace::laws
