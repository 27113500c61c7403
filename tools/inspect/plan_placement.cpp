#include "inspect/plan_placement.h"

#include <fmt/format.h>

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

bool fits(const PlacementSearch& search, Workers& workers, const TrainFlags& flags) {
  try {
    const TrainerOptions options = resolve_training(flags, search.vocabulary);
    const TrainingSetup setup = set_up_training(options.config, options.model, workers, search.compute);
    return setup.plan.memory.file_bytes() <= search.disk_bytes;
  } catch (const ShortageError&) {
    return false;
  }
}

}  // namespace

bool leaves_placement_open(const TrainFlags& flags) {
  return flags.config.empty() && flags.given(kParameters).empty() && flags.given(kStates).empty();
}

std::string choose_placement(const PlacementSearch& search, Workers& workers, TrainFlags& flags) {
  bool has_room = false;
  for (const Candidate& candidate : kCandidates) {
    place(candidate, flags);
    has_room = fits(search, workers, flags);
    if (has_room) break;
  }
  return fmt::format("placement: {} {} {} {}, {}", kParameters, flags.given(kParameters), kStates,
                     flags.given(kStates),
                     has_room ? "the nearest to the device that fits" : "which needs the least memory");
}

}  // namespace terrace
