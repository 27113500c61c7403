#include "inspect/stage_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace terrace {

void StageFlags::add_to(Command& command) {
  const FlagGroup group(command, "The plan");
  group.count(
      "--stages", 1, stages_,
      "Plan a pipeline of so many stages, as terrace.pipe trains it in PyTorch; --ranks is a multiple "
      "(default: as many)");
  group.yes("--best-stages", compares_,
            "Compare ZeRO-3 over all --ranks with pipelines of them, and with pipelines whose stages have "
            "several ranks each");
}

void StageFlags::take_ranks(TrainFlags& flags) {
  if (stages_ > 0 && compares_)
    refuse("--best-stages", "--stages says how many there are", "leave one of the two out");
  if (stages_ == 0) return;
  const std::string given = flags.given("--ranks");
  ranks_ = stages_;
  if (!given.empty()) {
    const auto [end, problem] = std::from_chars(given.data(), given.data() + given.size(), ranks_);
    if (problem != std::errc() || end != given.data() + given.size()) return;  // refused as of all plans
  }
  if (ranks_ == 0 || ranks_ % stages_ != 0)
    refuse(fmt::format("--stages {}", stages_), fmt::format("{} ranks are no multiple of that", ranks_),
           "give a number of --ranks that is one");
  flags.give("--ranks", std::to_string(ranks_ / stages_));
}

}  // namespace terrace
