// What a combination of factors says of a training: its model, its numbers, and the options of its offloader.
#include "laws/law_options.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/activations/saved_disk.h>

#include "laws/law_training.h"
#include "laws/other_part.h"
#include "laws/saved_inputs.h"
#include "support/offloaders.h"

namespace terrace::laws {
namespace {

ModelConfig law_config(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.layers = 2;
  config.heads = 2;
  config.width = 40;
  config.context = 24;
  config.vocabulary = 96;
  config.init_std = 0.1f;
  if (family == ModelFamily::gpt2) return config;
  config.heads = 4, config.key_value_heads = 2, config.head_size = 10, config.hidden = 112;
  config.attention_bias = config.output_bias = config.mlp_bias = config.tied_embeddings = false;
  return config;
}

using testing::Callers;

bool has_callers(const Combination& c) {
  return level_of(c, kOwner) == "caller" && level_of(c, kGradients) != "leases" &&
         level_of(c, kStates) != "none" && number_of(c, kRanks) == 1;
}

uint32_t gradient_bits_of(const Combination& c) {
  return level_of(c, kRounding) == "gradients" ? 8 : level_of(c, kRounding) == "both" ? 4 : 0;
}

// What ranks exchange goes from device to device.
bool moves_by_nccl(const Combination& c) {
  const StepRounds rounds = rounds_of(c);
  return rounds.ranks > 1 && rounds.hosts == 1 && level_of(c, kBackEnd) == "nccl";
}

GradientOrigin gradients_of(const Combination& c) {
  if (level_of(c, kGradients) == "handed_over_on_device" && !moves_by_nccl(c))
    return GradientOrigin::handed_over;
  if (level_of(c, kGradients) != "borrowed") return static_cast<GradientOrigin>(c[kGradients]);
  const bool borrows = has_callers(c) && number_of(c, kAccumulation) == 1 && number_of(c, kRanks) == 1 &&
                       gradient_bits_of(c) == 0;
  return borrows ? GradientOrigin::borrowed : GradientOrigin::handed_over;
}

bool has_masters_in_parameters(const Combination& c) {
  return level_of(c, kMaster) == "parameter" && has_callers(c) && level_of(c, kPrecision) == "fp32" &&
         level_of(c, kOptimizer) != "plain sgd";
}

Callers callers_of(const Combination& c) {
  if (!has_callers(c)) return Callers::none;
  const bool all = gradients_of(c) == GradientOrigin::borrowed || has_masters_in_parameters(c);
  return all ? Callers::all : Callers::every_second;
}

uint64_t ample_host_bytes(const MemoryPlan& plan, const OffloadOptions& options) {
  return plan.host_bytes + options.saved_least_bytes;
}

// Between the least budgets and those with which all has room.
void take_budgets(const Combination& c, const FlatSpace& space, const std::vector<TensorUse>& trace,
                  OffloadOptions& options) {
  const auto between = [](std::string_view level, uint64_t least, uint64_t most) {
    if (level == "least") return least;
    if (level == "near") return std::min(least + least / 4, std::max(least, most));
    return level == "ample" ? most : least + (most - least) / 2;
  };
  const std::vector<TensorUse> told = trace_told(c, trace);
  const MemoryPlan roomy = testing::plan_roomy(options, space, told);
  // A step may need more than one that was told of.
  const uint64_t least =
      std::max(roomy.device_minimum_bytes, plan_memory(space, trace, options).device_minimum_bytes);
  options.device_budget_bytes =
      between(level_of(c, kDevice), least, std::max(least, useful_device_bytes(roomy)));
  // What the host can hold depends on what the device does not.
  options.host_budget_bytes = kGiB;
  const uint64_t most = level_of(c, kHost) == "spilling"
                            ? roomy.host_holding_bytes
                            : ample_host_bytes(plan_memory(space, told, options), options);
  options.host_budget_bytes = between(level_of(c, kHost), roomy.host_minimum_bytes, most);
}

// Host memory has room for all pieces of the inputs that are there at once, or on nvme for some of them.
void take_saved(const Combination& c, const DryRun& dry, OffloadOptions& options) {
  const std::string_view place = level_of(c, kActivations);
  if (place != "saved" && place != "saved on nvme") return;
  const bool on_nvme = place == "saved on nvme";
  options.saved_activations = on_nvme ? Placement::nvme : Placement::cpu;
  const uint64_t granule = on_nvme ? SavedDisk::kUnitBytes : HostArena::kAlignment;
  uint64_t largest = 0, of_input = 0;
  for (const uint64_t elements : SavedInputs::piece_elements(dry.activation_entry_bytes / sizeof(float))) {
    const uint64_t cost = round_up(elements * sizeof(float), granule);
    largest = std::max(largest, cost), of_input += cost;
  }
  const uint64_t all = std::max(dry.activation_entries * of_input, largest);
  const uint64_t fitting = level_of(c, kPrefetch) == "0" ? largest : 2 * largest;
  options.saved_least_bytes = on_nvme && level_of(c, kPrefetch) != "32" ? std::min(fitting, all) : all;
}

// What cannot be pulled is refused: pulled_ranks_test.
bool can_pull(const Combination& c, const OffloadOptions& options) {
  const std::string_view update = level_of(c, kUpdate);
  if (update == "during_backward" || update == "mixed") return false;
  if (update == "next_forward" && options.parameters == Placement::none) return false;
  return options.states != Placement::none && !options.divides_parameters && !options.layer_major &&
         options.gradient_bits == 0 && options.parameter_bits == 0;
}

bool has_nvme(const OffloadOptions& options) {
  return options.parameters == Placement::nvme || options.states == Placement::nvme;
}

}  // namespace

std::vector<TensorSpec> tensors_of(const Combination& c, const Model& model,
                                   std::vector<std::vector<std::byte>>& memory) {
  std::vector<TensorSpec> tensors = model.tensors();
  testing::give_to_caller(tensors, callers_of(c), memory);
  training_of(c).declare_matrices(tensors);
  return tensors;
}

bool nests(const Combination& c) {
  return level_of(c, kLeases) == "nested";
}

OffloadOptions options_of(const Combination& c, const FlatSpace& space, const DryRun& dry,
                          const LawSurroundings& surroundings) {
  const Training training = training_of(c);
  OffloadOptions options;
  options.divides_parameters = level_of(c, kParameters) == "divided";
  options.parameters = placement_from_name(level_of(c, kParameters)).value_or(Placement::none);
  options.states = *placement_from_name(level_of(c, kStates));
  for (const std::filesystem::path& path : tier_folders(c, surroundings.folder))
    options.state_paths.push_back({path});
  options.parameter_paths = options.state_paths;
  options.work_bytes = dry.work_bytes;
  take_saved(c, dry, options);
  if (options.saved_activations == Placement::none) {
    options.activation_entries = dry.activation_entries;
    options.activation_entry_bytes = dry.activation_entry_bytes;
    options.activation_get_order = dry.activation_get_order;
  }
  if (level_of(c, kActivations) == "nvme" && has_nvme(options)) options.activations = Placement::nvme;
  options.record_layout = training.layout();
  options.matrix_products = training.products;
  const bool halves_meet = options.states != Placement::none || options.parameters == Placement::none;
  const bool all_in_bf16 = training.type == DataType::bf16 && !training.norm_type;
  if (level_of(c, kMaster) == "remainder" && all_in_bf16 && halves_meet && !has_callers(c) &&
      training.parameter_bits == 0)
    options.record_layout.master = MasterForm::remainder;
  if (has_masters_in_parameters(c)) options.record_layout.master = MasterForm::parameter;
  // The processor updates matrices.
  if (training.optimizer.kind != OptimizerKind::muon)
    options.processor_share = std::stod(std::string(level_of(c, kShare)));
  options.micro_batches = training.accumulation;
  options.gradient_group = training.group;
  options.gradient_bits = training.gradient_bits;
  options.parameter_bits = training.parameter_bits;
  options.accumulation_type = training.accumulation_type;
  options.layer_major = is_layer_major(c);
  options.gradients = training.gradients;
  options.unused_gradients = training.unused;
  options.policy = *policy_from_name(level_of(c, kPolicy));
  options.prefetch_uses = static_cast<uint32_t>(number_of(c, kPrefetch));
  options.io.kind = *io::engine_kind_from_name(level_of(c, kEngine));
  options.durable = level_of(c, kCommits) != "in place";
  if (options.durable && options.states == Placement::nvme)
    options.retained_commits = static_cast<uint32_t>(number_of(c, kRetained));
  options.tier_start = surroundings.start;
  options.discard_commits = surroundings.start == TierStart::fresh;
  options.hooks.decorate_engine = surroundings.decorate;
  options.hooks.step_events = surroundings.step_events;
  testing::set_ranks(options, surroundings.ranks);
  options.gathers_by_copies = options.ranks > 1 && level_of(c, kBackEnd) == "copies";
  options.exchanges_by_copies = options.gathers_by_copies || moves_by_nccl(c);
  if (options.ranks > 1 && level_of(c, kBackEnd) == "pulled" && can_pull(c, options))
    options.rank_exchange = RankExchange::pulled;
  if (options.ranks > 1 && level_of(c, kBackEnd) == "waiting") {
    options.ranks_overlap = false;
    options.compare_ranks_every_steps = 1;
    options.keeps_gathers_first = true;
    if (options.hosts == 4) options.sub_group_hosts = 2;
  }
  take_budgets(c, space, dry.trace, options);
  return options;
}

std::vector<TensorUse> trace_told(const Combination& c, std::vector<TensorUse> trace) {
  if (level_of(c, kTrace) == "as told") return trace;
  constexpr ptrdiff_t kTogether = 3;
  const auto prefix = [](const TensorUse& use) { return use.operation.substr(0, use.operation.find('/')); };
  for (auto first = trace.begin(); first != trace.end();) {
    const auto last = std::find_if(
        first, std::min(first + kTogether, trace.end()),
        [&](const TensorUse& use) { return use.kind != UseKind::backward || prefix(use) != prefix(*first); });
    std::reverse(first, last);
    first = std::max(last, first + 1);
  }
  return trace;
}

DryRun dry_run_of(const Combination& c, const Model& model, Workers& workers) {
  const std::string_view place = level_of(c, kActivations);
  const bool stay = place == "kept" || place == "checkpointed";
  const ActivationOffload offload = place == "nvme" ? ActivationOffload::nvme
                                    : stay          ? ActivationOffload::none
                                                    : ActivationOffload::cpu;
  return run_dry(model, rounds_of(c).count(), workers, offload, is_layer_major(c));
}

Training training_of(const Combination& c) {
  Training training;
  const bool mixed = level_of(c, kPrecision) == "mixed";
  training.type = mixed ? DataType::bf16 : static_cast<DataType>(c[kPrecision]);
  if (mixed) training.norm_type = DataType::fp32;
  training.accumulation = static_cast<uint32_t>(number_of(c, kAccumulation));
  training.group = static_cast<uint32_t>(number_of(c, kGroup));
  const bool adds_in_fp32 = mixed || level_of(c, kAccumulationType) == "fp32";
  training.accumulation_type = adds_in_fp32 ? DataType::fp32 : training.type;
  training.clip_norm = std::stod(std::string(level_of(c, kClipping)));
  training.optimizer = law_optimizer(level_of(c, kOptimizer));
  training.gradients = gradients_of(c);
  training.unused = static_cast<UnusedGradients>(c[kUnused]);
  training.callers = callers_of(c);
  if (level_of(c, kPart) == "one of two") training.squares_elsewhere = kSquaresElsewhere;
  training.moment_type = static_cast<MomentType>(c[kMoments]);
  training.products = static_cast<ProductType>(c[kCompute]);
  training.gradient_bits = gradient_bits_of(c);
  const bool rounds_parameters = level_of(c, kRounding) == "parameters" || level_of(c, kRounding) == "both";
  if (rounds_parameters && training.type != DataType::fp32) training.parameter_bits = 8;
  return training;
}

StepRounds rounds_of(const Combination& c) {
  const auto number = [&](FactorIndex factor) { return static_cast<uint32_t>(number_of(c, factor)); };
  const uint32_t ranks = number(kRanks), hosts = number(kHosts);
  return {number(kAccumulation), ranks, number(kGroup), ranks % hosts == 0 ? hosts : 1, gradient_bits_of(c)};
}

bool is_layer_major(const Combination& c) {
  return level_of(c, kOrder) == "layer" && rounds_of(c).count() > 1;
}

std::unique_ptr<Model> make_law_model(const Combination& c) {
  const std::string_view name = level_of(c, kModel);
  ModelOptions options;
  const Training training = training_of(c);
  options.type = training.type;
  options.norm_type = training.norm_type;
  options.seed = 7;
  options.checkpoint_activations = level_of(c, kActivations) != "kept";
  options.late_head_gradient = is_layer_major(c);
  // Tied embeddings and the lower half of the first layer, beside what is trained.
  if (name == "frozen") options.frozen = {"*.wte.*", "*.wpe.*", "*.h.0.ln_1.*", "*.h.0.attn.*"};
  options.quantize_base = weight_code_from_name(name).value_or(WeightCode::none);
  const bool is_coded = options.quantize_base != WeightCode::none;
  if (name == "lora" || is_coded) options.lora = LoraOptions{.rank = 4, .alpha = 8, .targets = {"*"}};
  const ModelFamily family = name == "qwen3" || name == "nf4"    ? ModelFamily::qwen3
                             : name == "llama" || name == "lora" ? ModelFamily::llama
                                                                 : ModelFamily::gpt2;
  return make_model(law_config(family), options);
}

std::vector<std::filesystem::path> tier_folders(const Combination& c, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> folders;
  for (uint64_t path = 0; path < number_of(c, kPaths); ++path) {
    folders.push_back(folder / fmt::format("path{}", path));
    std::filesystem::create_directory(folders.back());
  }
  return folders;
}

std::filesystem::path folder_of_rank(const Combination& c, const std::filesystem::path& folder,
                                     uint32_t rank) {
  if (rounds_of(c).ranks == 1) return folder;
  const std::filesystem::path own = folder / fmt::format("rank{}", rank);
  std::filesystem::create_directories(own);
  return own;
}

}  // namespace terrace::laws
