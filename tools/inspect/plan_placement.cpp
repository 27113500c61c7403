#include "inspect/plan_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/setup/training_setup.h>

namespace terrace {
namespace {

constexpr std::string_view kParameters = "--offload-param";
constexpr std::string_view kStates = "--offload-optimizer";

struct Candidate {
  Placement parameters;
  Placement states;
};
constexpr std::array kCandidates = {
    Candidate{Placement::none, Placement::none}, Candidate{Placement::none, Placement::cpu},
    Candidate{Placement::cpu, Placement::cpu},   Candidate{Placement::none, Placement::nvme},
    Candidate{Placement::cpu, Placement::nvme},  Candidate{Placement::nvme, Placement::nvme}};

void place(const Candidate& candidate, TrainFlags& flags) {
  flags.give(kParameters, name_of(candidate.parameters));
  flags.give(kStates, name_of(candidate.states));
}

enum class Fit : uint8_t { not_in_memory, not_on_drives, fits };

Fit fit_of(const PlacementSearch& search, Workers& workers, const TrainFlags& flags) {
  try {
    const TrainerOptions options = resolve_training(flags, search.vocabulary);
    const TrainingSetup setup = set_up_training(options.config, options.model, workers, search.compute);
    return setup.plan.memory.file_bytes() <= search.disk_bytes ? Fit::fits : Fit::not_on_drives;
  } catch (const ShortageError&) {
    return Fit::not_in_memory;
  }
}

std::string_view reason_of(Fit fit) {
  if (fit == Fit::fits) return "the nearest to the device that fits";
  return fit == Fit::not_on_drives ? "which fits into memory" : "which needs the least memory";
}

}  // namespace

bool leaves_placement_open(const TrainConfig& config) {
  return std::ranges::none_of(config.resolved, [](const ResolvedValue& line) {
    const bool is_device = line.key == "zero_optimization.offload_param.device" ||
                           line.key == "zero_optimization.offload_optimizer.device";
    return is_device && line.origin != "default";
  });
}

std::string choose_placement(const PlacementSearch& search, Workers& workers, TrainFlags& flags) {
  Fit fit = Fit::not_in_memory;
  for (const Candidate& candidate : kCandidates) {
    place(candidate, flags);
    fit = fit_of(search, workers, flags);
    if (fit != Fit::not_in_memory) break;  // what is further away needs no less of the drives
  }
  return fmt::format("placement: {} {} {} {}, {}", kParameters, flags.given(kParameters), kStates,
                     flags.given(kStates), reason_of(fit));
}

}  // namespace terrace
