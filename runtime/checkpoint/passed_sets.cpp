#include <terrace/runtime/checkpoint/passed_sets.h>

namespace terrace {

PassedSets::PassedSets(const std::vector<StateSet>& sets, Log& log) {
  for (const StateSet& set : sets)
    sets_.push_back({std::make_unique<HeldSet>(set, log), set.contents.has_commits});
}

void PassedSets::begin(bool keeps_commits) {
  std::erase_if(sets_, [&](const Passed& set) {
    if (keeps_commits && set.has_commits) return false;
    set.held->remove();
    return true;
  });
}

void PassedSets::commit_kept() {
  for (const Passed& set : sets_) set.held->remove();
  sets_.clear();
}

}  // namespace terrace
