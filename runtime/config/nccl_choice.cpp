#include <terrace/runtime/config/nccl_choice.h>

#include <fmt/format.h>

#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

void require_nccl_possible(const NcclRun& run) {
  const auto refuse = [](std::string reason, const Wording& advice) {
    throw Error(ErrorKind::config,
                {"cannot gather parameters by NCCL", Option::transport + " nccl", std::move(reason),
                 advice + ", or set " + Option::transport + " to auto"});
  };
  if (!run.is_on_gpus)
    refuse("the device is simulated, and NCCL moves bytes from GPU to GPU", "compute on GPUs");
  if (run.hosts > 1)
    refuse(fmt::format("ranks are on {} hosts, and what crosses between them passes through host memory",
                       run.hosts),
           "start all ranks on one host");
  if (run.exchange == RankExchange::pulled)
    refuse("ranks that pull ask in orders of their own, and NCCL moves what all ask for in one",
           "set " + Option::rank_exchange + " to symmetric");
}

}  // namespace terrace
