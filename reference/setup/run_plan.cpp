#include <terrace/reference/setup/run_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/plan/update_side.h>
#include <terrace/runtime/config/nccl_choice.h>
#include <terrace/runtime/config/parameter_groups.h>

namespace terrace {
namespace {

// Ranks of one host have equal shares of what it has.
DefaultBudget shared_by(uint32_t ranks, DefaultBudget budget) {
  if (ranks == 1) return budget;
  return {budget.bytes / ranks / (2 * kMiB) * (2 * kMiB),
          fmt::format("{}, for one of {} ranks", budget.origin, ranks)};
}

// A simulated device lives in the same memory as the host tier: by default the two share one budget.
void choose_host_budget(const TrainConfig& config, const Machine& machine, const DryRun& dry,
                        OffloadOptions& options, TrainerPlan& plan) {
  if (config.terrace.host_memory_bytes) {
    plan.host = {*config.terrace.host_memory_bytes, "as configured"};
  } else if (dry.device.own_memory) {
    const DefaultBudget budget = shared_by(config.ranks_on_host, default_host_budget(machine));
    plan.host = {budget.bytes, budget.origin};
  } else {
    const DefaultBudget both = shared_by(config.ranks_on_host, default_host_budget(machine));
    if (plan.device.bytes >= both.bytes) {
      throw Error(
          ErrorKind::config,
          {fmt::format("a device budget of {} leaves the host no memory", format_bytes(plan.device.bytes)),
           "",
           fmt::format("the device is simulated in the memory of the host, of which a run takes {}: {}",
                       format_bytes(both.bytes), both.origin),
           "lower " + Option::device_budget + ", or give " + Option::host_budget + " too"});
    }
    plan.host = {both.bytes - std::min(both.bytes, plan.device.bytes),
                 fmt::format("{}, less the device's {}", both.origin, format_bytes(plan.device.bytes))};
  }
  options.host_budget_bytes = plan.host.bytes;
}

// `simulated_bytes`: of a simulated device of which nobody said how large it is; 0: what it takes at first.
void choose_budgets(const TrainConfig& config, const Machine& machine, const std::vector<TensorSpec>& tensors,
                    const DryRun& dry, uint64_t simulated_bytes, OffloadOptions& options, TrainerPlan& plan) {
  if (config.terrace.device_memory_bytes) {
    plan.device = {*config.terrace.device_memory_bytes, "as configured"};
  } else if (dry.device.own_memory) {
    plan.device = {dry.device.own_memory->budget_bytes, dry.device.own_memory->origin};
  } else if (simulated_bytes > 0) {
    plan.device = {simulated_bytes, "what this run needs"};
  } else {
    const DefaultBudget budget = shared_by(config.ranks_on_host, largest_simulated_device_budget(machine));
    plan.device = {budget.bytes, budget.origin};
  }
  options.device_budget_bytes = plan.device.bytes;
  choose_host_budget(config, machine, dry, options, plan);
  if (config.terrace.chunk_elements) {
    plan.chunk_elements = *config.terrace.chunk_elements;
    plan.chunk_origin = "as configured";
  } else {
    plan.chunk_elements = choose_chunk_elements(tensors, dry.trace, options, config.max_chunk_elements);
    plan.chunk_origin = chunk_origin(plan.chunk_elements, config.max_chunk_elements,
                                     "the largest with which the budgets leave least to move");
  }
}

// One folder by two names, one in each list, is one path of the space: the first name counts.
std::vector<TierPath> space_paths(const std::vector<std::filesystem::path>& folders,
                                  const std::map<std::filesystem::path, double>& rates,
                                  const std::vector<TierPath>& known) {
  std::vector<TierPath> paths;
  for (const std::filesystem::path& folder : folders) {
    std::error_code error;
    const auto same = std::ranges::find_if(
        known, [&](const TierPath& path) { return std::filesystem::equivalent(path.path, folder, error); });
    const auto rate = rates.find(folder);
    paths.push_back({same == known.end() ? folder : same->path, rate == rates.end() ? 0 : rate->second});
  }
  return paths;
}

void place_activations(const TrainConfig& config, OffloadOptions& options) {
  const bool automatic = config.activations.offload == ActivationOffload::automatic;
  const bool has_nvme = options.parameters == Placement::nvme || options.states == Placement::nvme;
  if (config.activations.offload == ActivationOffload::nvme && !has_nvme) {
    throw Error(ErrorKind::config,
                {"cannot place activation checkpoints on nvme", "terrace.offload_activations",
                 "nothing else is there",
                 "place optimizer states or parameters there too, or set it to auto or cpu"});
  }
  if (config.activations.offload == ActivationOffload::nvme || (automatic && has_nvme))
    options.activations = Placement::nvme;
  options.activations_fill_device = automatic;
}

}  // namespace

std::string chunk_origin(uint64_t elements, uint64_t bound, const char* otherwise) {
  return bound > 0 && elements * 2 > bound ? "the largest that sub_group_size allows" : otherwise;
}

// A host has the parameters once, whatever part of its ranks a sub-group is.
static uint32_t hosts_of_sub_group(const TrainConfig& config) {
  const uint32_t size = config.sub_group_ranks, per_host = config.batch.ranks / config.batch.hosts;
  if (size <= per_host) return 1;
  if (size % per_host == 0) return size / per_host;
  throw Error(ErrorKind::config,
              {"cannot divide parameters among", fmt::format("sub-groups of {} ranks", size),
               fmt::format("hosts have {} ranks each, and a sub-group is of whole hosts", per_host),
               "set zero_optimization.mics_shard_size to a multiple of that, or leave it out"});
}

OffloadOptions offload_options(const TrainConfig& config, const DryRun& dry) {
  OffloadOptions options;
  options.parameters = config.placement.parameters;
  options.states = config.placement.states;
  options.durable = config.terrace.durable;
  options.retained_commits = config.terrace.retained_checkpoints;
  const PlacementConfig& placement = config.placement;
  options.state_paths = space_paths(placement.state_paths, placement.measured_rates, {});
  options.parameter_paths =
      space_paths(placement.parameter_paths, placement.measured_rates, options.state_paths);
  options.lock_host_memory = config.placement.pin_parameters && config.placement.pin_states;
  options.device_granularity_bytes = dry.device.granularity_bytes;
  options.work_bytes = dry.work_bytes;
  options.activation_entries = dry.activation_entries;
  options.activation_entry_bytes = dry.activation_entry_bytes;
  options.activation_get_order = dry.activation_get_order;
  place_activations(config, options);
  options.record_layout = record_layout(config);
  options.matrix_products = processor_products(config);
  options.processor_share = config.placement.processor_share;
  options.update_rates = config.placement.update_rates;
  options.micro_batches = config.batch.micro_batches;
  options.gradient_group = config.batch.rounds().group;
  options.gradient_bits = config.batch.gradient_bits;
  options.parameter_bits = config.parameter_bits;
  options.ranks = config.batch.ranks;
  options.rank_exchange = config.terrace.rank_exchange.value_or(RankExchange::symmetric);
  options.hosts = config.batch.hosts;
  options.divides_parameters = config.zero_stage == 3;
  options.exchanges_by_copies = dry.device.own_memory.has_value();
  options.gathers_by_copies = options.exchanges_by_copies && !gathers_by_nccl(config);
  if (gathers_by_nccl(config))
    require_nccl_possible({options.exchanges_by_copies, options.hosts, options.rank_exchange});
  options.ranks_overlap = config.ranks_overlap;
  options.keeps_gathers_first = config.keeps_gathers_first;
  options.sub_group_hosts = hosts_of_sub_group(config);
  options.compare_ranks_every_steps = config.terrace.compare_ranks_every_steps;
  options.layer_major = config.batch.layer_major;
  options.holds_gradients = config.terrace.update && mode_holds_gradients(*config.terrace.update, options);
  options.accumulation_type = config.grad_accum_type.value_or(DataType::fp32);
  options.policy = config.terrace.policy;
  options.prefetch_uses = config.max_prefetch_elements == 0 ? 0 : config.terrace.prefetch_uses;
  if (config.max_prefetch_elements) options.prefetch_elements = *config.max_prefetch_elements;
  options.verify_checksums = config.terrace.verify_checksums;
  options.reads_past_host = config.aio.file_reads == FileReads::on && options.parameters == Placement::nvme;
  if (config.aio.queue_depth) options.io.queue_depth = *config.aio.queue_depth;
  if (config.aio.block_bytes) options.io.block_bytes = *config.aio.block_bytes;
  if (config.aio.thread_count) options.io.thread_count = *config.aio.thread_count;
  return options;
}

namespace {

void require_reachable_matrices(const std::vector<TensorSpec>& tensors, const DryRun& dry,
                                const OffloadOptions& options) {
  if (options.states != Placement::none || !dry.device.own_memory) return;
  if (std::ranges::none_of(tensors, &TensorSpec::by_matrix)) return;
  throw Error(ErrorKind::config,
              {"cannot train matrices by Muon", "with optimizer states in the memory of a GPU",
               "the processor multiplies them, and does not reach that memory",
               "place the optimizer states on cpu or nvme (" + Option::states + ")"});
}

TrainerPlan plan_run(const TrainConfig& config, const std::vector<TensorSpec>& tensors, const DryRun& dry,
                     uint64_t simulated_bytes, OffloadOptions& options) {
  TrainerPlan plan;
  // What no budget makes possible is not told how much it needs.
  if (config.terrace.update) require_mode(*config.terrace.update, options);
  require_reachable_matrices(tensors, dry, options);
  const Machine machine = probe_machine();
  choose_budgets(config, machine, tensors, dry, simulated_bytes, options, plan);
  require_bookkeeping(SpaceLayout(tensors, plan.chunk_elements), options);
  const FlatSpace space(tensors, plan.chunk_elements);
  plan.memory = plan_memory(space, dry.trace, options);
  if (!config.terrace.device_memory_bytes && useful_device_bytes(plan.memory) < plan.device.bytes) {
    // A simulated device takes memory from the host, and a GPU has other users: no more than this run can
    // use.
    options.device_budget_bytes = useful_device_bytes(plan.memory);
    plan.device = {options.device_budget_bytes, "what this run can use"};
    choose_host_budget(config, machine, dry, options, plan);
    plan.memory = plan_memory(space, dry.trace, options);
  }
  if (config.terrace.update) require_mode(*config.terrace.update, space, plan.memory, options);
  plan.processor_share = share_of_processor(space, plan.memory.device_side);
  plan.disk = share_disk(plan.memory, options);
  plan.parameter_count = space.parameter_count();
  plan.trainable_count = space.trainable_count();
  for (const TensorSpec& tensor : tensors) plan.param_bytes += tensor.element_count() * bytes_of(tensor.type);
  plan.state_bytes = space.trainable_count() * options.record_layout.tile_bytes() / kTileElements;
  plan.saved_state_bytes =
      space.trainable_count() * options.record_layout.canonical().tile_bytes() / kTileElements;
  if (options.parameters == Placement::nvme || options.states == Placement::nvme) {
    const io::EngineChoice choice = io::choose_engine(config.terrace.engine);
    options.io.kind = choice.kind;
    plan.engine = choice.reason;
  }
  return plan;
}

// What a simulated device may take so that both tiers have what they are short of; 0: there is no such size.
uint64_t fitting_device_bytes(const TrainConfig& config, const ShortageError& shortage) {
  uint64_t device = 0, host = 0;
  for (const TierShortage& tier : shortage.tiers()) {
    if (tier.tier == "nvme") return 0;
    (tier.tier == "device" ? device : host) = tier.needed_bytes;
  }
  if (config.terrace.host_memory_bytes) {
    if (host > 0) return 0;
    host = *config.terrace.host_memory_bytes;
  }
  const uint64_t both = shared_by(config.ranks_on_host, default_host_budget(probe_machine())).bytes;
  if (host >= both) return 0;
  const uint64_t left = (both - host) / (2 * kMiB) * (2 * kMiB);
  return device == 0 ? left : device < left ? round_up(device, 2 * kMiB) : 0;
}

// A simulated device takes another share of the memory where the run needs that.
TrainerPlan plan_run(const TrainConfig& config, const std::vector<TensorSpec>& tensors, const DryRun& dry,
                     OffloadOptions& options) {
  const OffloadOptions asked = options;
  try {
    return plan_run(config, tensors, dry, 0, options);
  } catch (const ShortageError& shortage) {
    if (config.terrace.device_memory_bytes || dry.device.own_memory) throw;
    const uint64_t fitting = fitting_device_bytes(config, shortage);
    if (fitting == 0) throw;
    try {
      options = asked;
      return plan_run(config, tensors, dry, fitting, options);
    } catch (const Error&) {  // the first one says it best
    }
    options = asked;
    throw;
  }
}

}  // namespace

TrainerPlan make_plan(const TrainConfig& config, const std::vector<TensorSpec>& tensors, const DryRun& dry,
                      OffloadOptions& options) {
  if (!options.update_rates) return plan_run(config, tensors, dry, options);
  OffloadOptions undivided = options;
  undivided.update_rates.reset();
  undivided.processor_share = 1;
  try {
    return plan_run(config, tensors, dry, options);
  } catch (const ShortageError&) {
    options = undivided;
    return plan_run(config, tensors, dry, options);
  }
}

void require_machine_memory(const TrainerPlan& plan, bool device_has_own_memory, const Machine& machine,
                            uint64_t process_bytes, Log& log) {
  constexpr uint64_t kReserve = 16;  // of the limit, as where records leave under pressure
  const SourcedBytes& limit = machine.memory_limit;
  if (plan.host.bytes > limit.bytes)
    log.warning(fmt::format("a host budget of {} is more than the {} that there are ({})",
                            format_bytes(plan.host.bytes), format_bytes(limit.bytes), limit.origin));
  const uint64_t device_bytes = device_has_own_memory ? 0 : plan.memory.device_bytes;
  const uint64_t needed = plan.memory.host_bytes + device_bytes + process_bytes;
  if (needed <= limit.bytes - (limit.is_cgroups ? limit.bytes / kReserve : 0)) return;
  const std::string taken = fmt::format(
      "the plan takes {} of host memory{}, and the program itself {}: {} of the {} that there are",
      format_bytes(plan.memory.host_bytes),
      device_bytes > 0 ? fmt::format(", {} for the simulated device", format_bytes(device_bytes)) : "",
      format_bytes(process_bytes), format_bytes(needed), format_bytes(limit.bytes));
  if (limit.is_cgroups && needed > limit.bytes) {
    throw Error(ErrorKind::capacity, {"the kernel would end this run for want of memory", limit.origin, taken,
                                      "lower " + Option::host_budget + " or " + Option::device_budget +
                                          ", or give the "
                                          "container more"});
  }
  log.warning(
      limit.is_cgroups
          ? fmt::format("{} ({}): what else the program needs may end it", taken, limit.origin)
          : fmt::format("{}: what other programs have now must go to swap, or the kernel ends one", taken));
}

}  // namespace terrace
