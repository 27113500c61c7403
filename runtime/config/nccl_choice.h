// What a run has to be like whose ranks gather parameters, and exchange gradients, by NCCL
// (CommunicatorChoice::nccl).
#pragma once

#include <cstdint>

#include <terrace/offload/options/offload_options.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Whether there are ranks that are to gather by it.
inline bool gathers_by_nccl(const TrainConfig& config) {
  return config.batch.ranks > 1 && config.terrace.communicator == CommunicatorChoice::nccl;
}

struct NcclRun {
  bool is_on_gpus = false;
  uint32_t hosts = 1;
  RankExchange exchange = RankExchange::symmetric;
};

// Throws Error(config) where it is not like that.
void require_nccl_possible(const NcclRun& run);

}  // namespace terrace
