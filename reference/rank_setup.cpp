#include <terrace/reference/rank_setup.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_agreement.h>
#include <terrace/runtime/config/run_settings.h>

namespace terrace {
namespace {

// What may be another on every rank.
bool is_own(std::string_view key) {
  static constexpr std::string_view kOwn[] = {"zero_optimization.offload_param.nvme_path",
                                              "zero_optimization.offload_optimizer.nvme_path",
                                              "terrace.threads",
                                              "terrace.bind_threads",
                                              "terrace.rank_timeout_seconds",
                                              "terrace.device_memory",
                                              "terrace.host_memory"};
  return std::ranges::find(kOwn, key) != std::end(kOwn);
}

}  // namespace

std::map<std::string, std::string> facts_of_run(const TrainerOptions& options) {
  std::map<std::string, std::string> facts = settings_of(options.config, options.steps);
  for (const ResolvedValue& value : options.config.resolved) {
    if (!is_own(value.key)) facts[value.key] = value.value;
  }
  const ModelConfig& model = options.model;
  facts["what computes"] = facts_of(options.compute).name;
  facts["layers"] = std::to_string(model.layers);
  facts["heads"] = std::to_string(model.heads);
  facts["width"] = std::to_string(model.width);
  facts["context"] = std::to_string(model.context);
  facts["vocabulary"] = std::to_string(model.vocabulary);
  return facts;
}

namespace {

using SetUpAlone = FunctionRef<TrainingSetup(const TrainerOptions&)>;

// Either all ranks have a plan, or none goes on.
TrainingSetup set_up_on_all(const TrainerOptions& options, const RankVotes& ranks, SetUpAlone set_up_alone) {
  std::optional<TrainingSetup> setup;
  std::exception_ptr failure;
  try {
    setup = set_up_alone(options);
  } catch (...) {
    failure = std::current_exception();
  }
  const bool failed = ranks.any(failure != nullptr);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (failed)
    throw Error(ErrorKind::peer, {"cannot train", "with the other ranks", "one of them cannot plan its part",
                                  "see what that rank says"});
  return std::move(*setup);
}

// The least that any rank has. What a device has of which nobody said how large it is, is only what its rank
// can use; one with more threads can use more.
uint64_t common_device_bytes(const TrainerOptions& options, const TrainingSetup& setup,
                             const RankVotes& ranks) {
  const uint64_t budget = setup.offload.device_budget_bytes;
  const bool is_limit = options.config.terrace.device_memory_bytes || setup.dry.device.own_memory;
  const uint64_t least = ranks.least(is_limit ? budget : UINT64_MAX);
  if (!ranks.any(!is_limit)) return least;
  const uint64_t useful = std::min(budget, useful_device_bytes(setup.plan.memory));
  return std::min(least, std::ranges::max(ranks.of_all(useful)));
}

}  // namespace

TrainingSetup set_up_together(const TrainerOptions& options, SetUpAlone set_up_alone) {
  require_agreement(*options.communicator, facts_of_run(options));
  const RankVotes ranks(options.communicator);
  TrainingSetup setup = set_up_on_all(options, ranks, set_up_alone);
  TrainerOptions common = options;
  TerraceConfig& own = common.config.terrace;
  own.device_memory_bytes = common_device_bytes(options, setup, ranks);
  own.host_memory_bytes = ranks.least(setup.offload.host_budget_bytes);
  own.chunk_elements = ranks.of_first(setup.plan.chunk_elements);
  // Rates say which side updates a chunk, and each rank has measured its own.
  std::optional<UpdateRates>& rates = common.config.placement.update_rates;
  if (rates) rates = ranks.of_first(*rates);
  const std::string origin = setup.plan.chunk_origin;
  setup = set_up_on_all(common, ranks, set_up_alone);
  setup.plan.chunk_origin = origin;
  setup.plan.device.origin = setup.plan.host.origin = "the least of all ranks";
  return setup;
}

uint32_t gpu_of_rank(const Communicator& ranks, uint32_t gpu_count) {
  const RankPlace& own = ranks.places()[ranks.rank()];
  const auto neighbours =
      static_cast<uint32_t>(std::ranges::count(ranks.places(), own.host, &RankPlace::host));
  if (neighbours <= gpu_count) return own.local_rank;
  throw Error(
      ErrorKind::config,
      {fmt::format("cannot train with {} ranks on the GPUs of", neighbours),
       own.host_name.empty() ? "this host" : fmt::format("host {}", own.host_name),
       fmt::format("each rank computes on a GPU of its own, and rank {} sees {}", own.rank, gpu_count),
       "start as many ranks on this host as there are GPUs, and let each see all of them "
       "(CUDA_VISIBLE_DEVICES)"});
}

RankVotes agreed_ranks(Communicator* communicator, const CheckpointInfo& mine) {
  if (communicator == nullptr) return RankVotes(nullptr);
  std::map<std::string, std::string> facts = {
      {"the model's tensors", fmt::format("{:016x}", mine.tensor_hash)},
      {"the processor's instructions", std::string(name_of(best_instruction_set()))}};
  for (const auto& [name, value] : mine.position) facts["of the data: " + name] = std::to_string(value);
  require_agreement(*communicator, facts);
  return RankVotes(communicator);
}

}  // namespace terrace
