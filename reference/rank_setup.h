// How the ranks of a run come to the same plan of the same training, or to an error on all of them.
#pragma once

#include <map>
#include <string>

#include <terrace/base/function_ref.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {

// What all ranks of a run have alike, by key: the configuration, but for what is a rank's own, the steps, the
// seed and the model.
std::map<std::string, std::string> facts_of_run(const TrainerOptions& options);

// Plans with the least budgets that any rank has, and with the chunks and the measured rates of the first, so
// that all decide alike;
// `set_up_alone` makes a plan without looking at other ranks. Throws Error(config) where the configurations
// differ, naming each difference, and Error(peer) where another rank cannot plan.
TrainingSetup set_up_together(const TrainerOptions& options,
                              FunctionRef<TrainingSetup(const TrainerOptions&)> set_up_alone);

// The GPU of this rank, which no other rank of its host has: that of its place among them. Every rank's place
// is known, and the driver finds `gpu_count` GPUs. Throws Error(config) where there are fewer than ranks.
uint32_t gpu_of_rank(const Communicator& ranks, uint32_t gpu_count);

// The votes of ranks that train `mine`; a null communicator stands for one rank. Throws Error(config) where
// their models, data or processors differ.
RankVotes agreed_ranks(Communicator* communicator, const CheckpointInfo& mine);

}  // namespace terrace
