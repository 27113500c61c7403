// The optimizers of terrace.h as the library knows them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <terrace.h>
#include <terrace/capi/names.h>
#include <terrace/offload/update/update_settings.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace::c {

// `kind` is a terrace_optimizer_kind.
OptimizerKind optimizer_kind(uint32_t kind);

// UpdateSettings with the groups that they refer to.
struct OwnedSettings {
  std::vector<OptimizerSettings> groups;
  UpdateSettings settings;
};
// Throws Error(misuse) and Error(config); what the numbers mean is checked by the Offloader.
// `tensors_count_steps`: the number of the step has no meaning.
OwnedSettings read_settings(const terrace_update_settings* given, bool tensors_count_steps,
                            const Subject& action);

}  // namespace terrace::c
