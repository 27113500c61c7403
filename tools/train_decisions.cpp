#include "train_decisions.h"

#include <filesystem>

#include <terrace/base/error.h>

namespace terrace {

// Writing begins with emptying the file, so what is replayed is looked at before.
void TrainDecisions::apply_to(TrainingSetup& setup, const TrainFlags& flags, Log& log) {
  const DecisionSubject subject = decision_subject(setup.plan.memory, setup.offload);
  if (!flags.replay_decisions.empty()) {
    replay_ = std::make_unique<DecisionReplay>(flags.replay_decisions, subject);
    setup.offload.replay = replay_.get();
  }
  if (flags.decisions.empty()) return;
  std::error_code missing;
  if (std::filesystem::equivalent(flags.decisions, flags.replay_decisions, missing)) {
    throw Error(ErrorKind::config,
                {"cannot use", "--decisions " + flags.decisions,
                 "it is the file of --replay-decisions, which is read", "name another file"});
  }
  file_ = std::make_unique<DecisionFile>(flags.decisions, subject, flags.decisions_limit_bytes, log);
  setup.offload.decisions = file_.get();
}

}  // namespace terrace
