#include "train/train_decisions.h"

namespace terrace {

TrainDecisions::TrainDecisions(const TrainingSetup& setup, const TrainFlags& flags) : flags_(flags) {
  if (flags.replay_decisions.empty()) return;
  replay_ = std::make_unique<DecisionReplay>(flags.replay_decisions,
                                             decision_subject(setup.plan.memory, setup.offload));
}

void TrainDecisions::apply_to(TrainingSetup& setup, Log& log) {
  setup.offload.hooks.replay = replay_.get();
  if (flags_.decisions.empty()) return;
  file_ = std::make_unique<DecisionFile>(flags_.decisions, decision_subject(setup.plan.memory, setup.offload),
                                         flags_.decisions_limit_bytes.value_or(kGiB), log);
  setup.offload.hooks.decisions = file_.get();
}

}  // namespace terrace
