#include "laws/placement_law.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include <terrace/base/log.h>
#include <terrace/memory/simulated_device.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/runtime/compute/host_ops.h>

#include "laws/plain_training.h"
#include "offload/recorded_steps.h"

namespace terrace::laws {
namespace {

enum FactorIndex : size_t {
  kParameters,
  kStates,
  kHost,
  kDevice,
  kPolicy,
  kEngine,
  kChunk,
  kThreads,
  kPrecision,
  kAccumulation,
  kClipping,
  kPrefetch,
  kStrict,
  kAccumulationType,
  kModel,
  kActivations,
  kCommits,
  kOptimizer,
  kMoments,
  kUpdate,
  kBudgetChange,
  kCompact,
  kOrder,
  kShare,
};

constexpr std::array<std::string_view, 3> kPlacements = {"none", "cpu", "nvme"};
constexpr std::array<std::string_view, 3> kBudgets = {"least", "middle", "ample"};
// "spilling": with it some gradients are held and others are on nvme, where gradients can be.
constexpr std::array<std::string_view, 4> kHostBudgets = {"least", "middle", "ample", "spilling"};
constexpr std::array<std::string_view, 6> kPolicies = {"opt", "lru", "fifo", "mru", "gemini", "patrickstar"};
constexpr std::array<std::string_view, 3> kEngines = {"io_uring", "libaio", "threads"};
constexpr std::array<std::string_view, 3> kChunks = {"4096", "12288", "65536"};
constexpr std::array<std::string_view, 3> kThreadCounts = {"1", "2", "3"};
constexpr std::array<std::string_view, 3> kPrecisions = {"bf16", "fp32", "fp16"};
constexpr std::array<std::string_view, 2> kAccumulations = {"1", "3"};
constexpr std::array<std::string_view, 2> kClippings = {"0", "0.5"};
constexpr std::array<std::string_view, 3> kPrefetches = {"0", "2", "32"};
constexpr std::array<std::string_view, 2> kStrictness = {"off", "on"};
constexpr std::array<std::string_view, 2> kAccumulationTypes = {"fp32", "own"};
constexpr std::array<std::string_view, 4> kModels = {"gpt2", "llama", "frozen", "lora"};
constexpr std::array<std::string_view, 3> kActivationPlaces = {"kept", "checkpointed", "host"};

// Where optimizer states are on nvme: written in place, or with epochs that are committed every so many
// steps.
constexpr std::array<std::string_view, 4> kCommitCadences = {"in place", "0", "1", "2"};

constexpr std::array<std::string_view, 2> kMomentTypes = {"fp32", "bf16"};
// Where states are not on the device; "mixed": another mode in every step.
constexpr std::array<std::string_view, 4> kUpdates = {"after_backward", "next_forward", "during_backward",
                                                      "mixed"};

// Of the host budget: to the least after the first step, and back after the second.
constexpr std::array<std::string_view, 3> kBudgetChanges = {"none", "down", "down and up"};

constexpr std::array<std::string_view, 2> kCompactness = {"off", "on"};  // where it is possible

constexpr std::array<std::string_view, 2> kOrders = {"batch", "layer"};  // of several micro-batches

// Of what the processor updates; the device updates the rest, though its states live below it.
constexpr std::array<std::string_view, 4> kShares = {"1", "0.5", "0", "0.3"};

constexpr std::array<Factor, kFactorCount> kFactors = {{
    {"parameters", kPlacements},
    {"states", kPlacements},
    {"host", kHostBudgets},
    {"device", kBudgets},
    {"policy", kPolicies},
    {"engine", kEngines},
    {"chunk", kChunks},
    {"threads", kThreadCounts},
    {"precision", kPrecisions},
    {"accumulation", kAccumulations},
    {"clipping", kClippings},
    {"prefetch", kPrefetches},
    {"strict", kStrictness},
    {"accumulation type", kAccumulationTypes},
    {"model", kModels},
    {"activations", kActivationPlaces},
    {"commits", kCommitCadences},
    {"optimizer", kOptimizers},
    {"moments", kMomentTypes},
    {"update", kUpdates},
    {"budget change", kBudgetChanges},
    {"compact", kCompactness},
    {"order", kOrders},
    {"processor share", kShares},
}};

uint64_t number(const Combination& c, FactorIndex factor) {
  return std::stoull(std::string(kFactors[factor].levels[c[factor]]));
}

// Marks the triples of a combination and counts the new ones.
class TripleCover {
 public:
  TripleCover() {
    uint64_t size = 0;
    for_each_triple([&](size_t a, size_t b, size_t c) {
      begin_.push_back(size);
      size += kFactors[a].levels.size() * kFactors[b].levels.size() * kFactors[c].levels.size();
    });
    covered_.resize(size);
    missing_ = size;
  }
  uint64_t count_new(const Combination& combination) const {
    uint64_t count = 0;
    visit(combination, [&](uint64_t index) { count += covered_[index] ? 0 : 1; });
    return count;
  }
  void add(const Combination& combination) {
    visit(combination, [&](uint64_t index) {
      missing_ -= covered_[index] ? 0 : 1;
      covered_[index] = true;
    });
  }
  uint64_t missing() const { return missing_; }

 private:
  template <typename Body>
  static void for_each_triple(Body body) {
    for (size_t a = 0; a < kFactorCount; ++a) {
      for (size_t b = a + 1; b < kFactorCount; ++b) {
        for (size_t c = b + 1; c < kFactorCount; ++c) body(a, b, c);
      }
    }
  }
  template <typename Body>
  void visit(const Combination& combination, Body body) const {
    size_t triple = 0;
    for_each_triple([&](size_t a, size_t b, size_t c) {
      const uint64_t index =
          (combination[a] * kFactors[b].levels.size() + combination[b]) * kFactors[c].levels.size();
      body(begin_[triple++] + index + combination[c]);
    });
  }
  std::vector<uint64_t> begin_;
  std::vector<bool> covered_;
  uint64_t missing_ = 0;
};

Training training_of(const Combination& c) {
  constexpr std::array kTypes = {DataType::bf16, DataType::fp32,
                                 DataType::fp16};  // in the order of kPrecisions
  Training training;
  training.type = kTypes[c[kPrecision]];
  training.accumulation = static_cast<uint32_t>(number(c, kAccumulation));
  training.accumulation_type = c[kAccumulationType] == 0 ? DataType::fp32 : training.type;
  training.clip_norm = std::stod(std::string(kClippings[c[kClipping]]));
  training.optimizer = law_optimizer(kOptimizers[c[kOptimizer]]);
  training.moment_type = c[kMoments] == 0 ? DataType::fp32 : DataType::bf16;
  return training;
}

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

bool is_layer_major(const Combination& c) {
  return kOrders[c[kOrder]] == "layer" && number(c, kAccumulation) > 1;
}

std::unique_ptr<Model> make_law_model(const Combination& c) {
  const std::string_view name = kModels[c[kModel]];
  ModelOptions options;
  options.type = training_of(c).type;
  options.seed = 7;
  options.checkpoint_activations = kActivationPlaces[c[kActivations]] != "kept";
  options.late_head_gradient = is_layer_major(c);
  // Tied embeddings and the lower half of the first layer, beside what is trained.
  if (name == "frozen") options.frozen = {"*.wte.*", "*.wpe.*", "*.h.0.ln_1.*", "*.h.0.attn.*"};
  if (name == "lora") options.lora = LoraOptions{.rank = 4, .alpha = 8, .targets = {"*"}};
  const bool is_llama = name == "llama" || name == "lora";
  return make_model(law_config(is_llama ? ModelFamily::llama : ModelFamily::gpt2), options);
}

OffloadOptions options_of(const Combination& c, const FlatSpace& space, const DryRun& dry,
                          const std::filesystem::path& folder) {
  const Training training = training_of(c);
  OffloadOptions options;
  options.parameters = *placement_from_name(kPlacements[c[kParameters]]);
  options.states = *placement_from_name(kPlacements[c[kStates]]);
  options.parameter_paths = options.state_paths = {{folder}};
  options.work_bytes = dry.work_bytes;
  options.activation_entries = dry.activation_entries;
  options.activation_entry_bytes = dry.activation_entry_bytes;
  options.record_layout = training.layout();
  const bool halves_meet = options.states != Placement::none || options.parameters == Placement::none;
  if (kCompactness[c[kCompact]] == "on" && training.type == DataType::bf16 && halves_meet)
    options.record_layout.master = MasterForm::remainder;
  options.processor_share = std::stod(std::string(kShares[c[kShare]]));
  options.accumulation_steps = training.accumulation;
  options.accumulation_type = training.accumulation_type;
  options.layer_major = is_layer_major(c);
  options.policy = *policy_from_name(kPolicies[c[kPolicy]]);
  options.prefetch_uses = static_cast<uint32_t>(number(c, kPrefetch));
  options.io.kind = *io::engine_kind_from_name(kEngines[c[kEngine]]);
  options.lock_host_memory = false;
  options.durable = c[kCommits] != 0;
  options.discard_epochs = true;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  const MemoryPlan roomy = plan_memory(space, dry.trace, options);
  options.device_budget_bytes =
      roomy.device_minimum_bytes + (useful_device_bytes(roomy) - roomy.device_minimum_bytes) * c[kDevice] / 2;
  const uint64_t most = kHostBudgets[c[kHost]] == "spilling" ? roomy.host_holding_bytes : roomy.host_bytes;
  constexpr std::array<uint64_t, 4> kHalves = {0, 1, 2, 1};
  options.host_budget_bytes =
      roomy.host_minimum_bytes + (most - roomy.host_minimum_bytes) * kHalves[c[kHost]] / 2;
  return options;
}

UpdateMode update_mode_of(const Combination& c, uint64_t step) {
  constexpr std::array kModes = {UpdateMode::after_backward, UpdateMode::next_forward,
                                 UpdateMode::during_backward};
  const bool mixed = kUpdates[c[kUpdate]] == "mixed";
  return kModes[mixed ? step % kModes.size() : c[kUpdate]];
}

// Law 2 at every budget that a combination has, to the byte.
void require_within_budgets(const OffloadOptions& options, const Offloader& offloader,
                            const SimulatedDevice& device) {
  uint64_t host_bytes = 0;
  for (const TierUse& use : offloader.host_ledger()) host_bytes += use.bytes;
  if (host_bytes > options.host_budget_bytes || offloader.plan().host_bytes > options.host_budget_bytes ||
      device.peak_bytes() > options.device_budget_bytes) {
    throw std::runtime_error(fmt::format("beyond a budget: host {} of {}, device {} of {}", host_bytes,
                                         options.host_budget_bytes, device.peak_bytes(),
                                         options.device_budget_bytes));
  }
}

// Whether the run was to spill gradients, which it has done then, and else has not.
bool require_spilled(const Offloader& offloader) {
  const bool spills = offloader.plan().spilled_chunks > 0;
  const OffloadCounters moved = offloader.counters();
  if (spills == (moved.gradient_write_bytes > 0) && spills == (moved.gradient_read_bytes > 0)) return spills;
  throw std::runtime_error(fmt::format("{} chunks have spilled {} bytes of gradients, and read {}",
                                       offloader.plan().spilled_chunks, moved.gradient_write_bytes,
                                       moved.gradient_read_bytes));
}

void require_recorded(const OffloadOptions& options, RecordedSteps& recorded) {
  if (options.step_events == nullptr) return;
  recorded.take();
  const std::string found = recorded.difference();
  if (!found.empty()) throw std::runtime_error("what was recorded is not what was counted: " + found);
}

}  // namespace

std::span<const Factor, kFactorCount> factors() {
  return kFactors;
}

std::string describe(const Combination& combination) {
  std::string text;
  for (size_t f = 0; f < kFactorCount; ++f) {
    text += fmt::format("{}{}={}", f == 0 ? "" : " ", kFactors[f].name, kFactors[f].levels[combination[f]]);
  }
  return text;
}

// Greedy: of many random candidates, take the one that covers most new triples.
std::vector<Combination> covering_array_of_triples() {
  std::mt19937 random(20);
  TripleCover cover;
  std::vector<Combination> list;
  while (cover.missing() > 0) {
    Combination best{};
    uint64_t best_count = 0;
    for (int attempt = 0; attempt < 400 || best_count == 0; ++attempt) {
      Combination candidate;
      for (size_t f = 0; f < kFactorCount; ++f)
        candidate[f] = static_cast<uint8_t>(random() % kFactors[f].levels.size());
      const uint64_t count = cover.count_new(candidate);
      if (count > best_count) best_count = count, best = candidate;
    }
    cover.add(best);
    list.push_back(best);
  }
  return list;
}

uint64_t missing_triples(std::span<const Combination> list) {
  TripleCover cover;
  for (const Combination& combination : list) cover.add(combination);
  return cover.missing();
}

uint64_t full_product_size() {
  uint64_t size = 1;
  for (const Factor& factor : kFactors) size *= factor.levels.size();
  return size;
}

Combination product_element(uint64_t index) {
  Combination combination{};
  for (size_t f = 0; f < kFactorCount; ++f) {
    combination[f] = static_cast<uint8_t>(index % kFactors[f].levels.size());
    index /= kFactors[f].levels.size();
  }
  return combination;
}

std::string difference(const Outcome& expected, const Outcome& found) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (i < found.losses.size() && expected.losses[i] == found.losses[i]) continue;
    return fmt::format("loss {}: {} instead of {}", i,
                       i < found.losses.size() ? std::bit_cast<float>(found.losses[i]) : NAN,
                       std::bit_cast<float>(expected.losses[i]));
  }
  for (size_t i = 0; i < expected.gradient_norms.size(); ++i) {
    if (i < found.gradient_norms.size() && expected.gradient_norms[i] == found.gradient_norms[i]) continue;
    return fmt::format("gradient norm {} differs", i);
  }
  if (expected.parameters != found.parameters) return "the parameters differ";
  if (expected.records != found.records) return "the optimizer states differ";
  return expected == found ? "" : "the outcomes differ in size";
}

Outcome PlacementLaw::train(const Combination& c) {
  const Training training = training_of(c);
  const std::unique_ptr<Model> owner = make_law_model(c);
  const Model& model = *owner;
  const FlatSpace space(model.tensors(), number(c, kChunk));
  Workers workers(number(c, kThreads));
  const DryRun dry = run_dry(model, training.accumulation, workers,
                             kActivationPlaces[c[kActivations]] == "host", is_layer_major(c));
  OffloadOptions options = options_of(c, space, dry, folder_);
  RecordedSteps recorded;
  if (records_steps_) options.step_events = &recorded.events;
  MemoryLog log;
  SimulatedDevice device({options.device_budget_bytes, c[kStrict] == 1, 0, 0});
  Offloader offloader(space, options, dry.trace, device, workers, log);
  offloader.initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    model.initial_values(tensor, first, values);
  });
  const HostOps ops(workers, best_instruction_set());
  StackArena arena(offloader.work_memory());
  Outcome outcome;
  uint64_t updates = 0;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const float loss_scale = loss_scale_of(training.type, step);
    const std::vector<OptimizerSettings> groups = settings(updates + 1, training.optimizer);
    const UpdateSettings update{groups, updates + 1, training.clip_norm, loss_scale};
    const UpdateMode mode = update_mode_of(c, step);
    if (offloader.why_not(mode).empty()) offloader.set_update_mode(mode);
    recorded.begin(step, offloader);
    offloader.begin_step();
    const auto announce = [&] {
      if (offloader.update_mode() == UpdateMode::during_backward) offloader.announce_update(update);
    };
    const float scale = loss_scale / static_cast<float>(training.accumulation);
    if (is_layer_major(c)) {
      announce();
      LayerMajorBatch batch(model.config(), step, training.accumulation);
      model.train_layer_major(ops, offloader, arena, batch.runs, scale, offloader.activations());
      for (const MicroBatchRun& run : batch.runs) outcome.losses.push_back(std::bit_cast<uint32_t>(run.loss));
      offloader.end_micro_batch();
    }
    for (uint32_t m = 0; m < training.accumulation && !is_layer_major(c); ++m) {
      if (m + 1 == training.accumulation) announce();
      const TokenBatch tokens(model.config(), step * 10 + m);
      const float loss = model.train_micro_batch(ops, offloader, arena, tokens.view(), scale,
                                                 micro_batch_prefix(m), offloader.activations());
      outcome.losses.push_back(std::bit_cast<uint32_t>(loss));
      offloader.end_micro_batch();
    }
    const UpdateResult result = offloader.update(update);
    recorded.end(offloader);
    updates += result.applied ? 1 : 0;
    if (offloader.update_mode() == UpdateMode::next_forward && result.applied != offloader.update_pending())
      throw std::runtime_error("an update for the next forward does not wait for it");
    outcome.gradient_norms.push_back(result.applied ? std::bit_cast<uint64_t>(result.gradient_norm) : 0);
    const uint64_t cadence = c[kCommits] < 2 ? 0 : number(c, kCommits);
    if (offloader.keeps_epochs() && cadence > 0 && step % cadence == 0) offloader.begin_commit("law");
    if (step == 1 && c[kBudgetChange] > 0) offloader.set_host_budget(offloader.least_host_budget());
    if (step == 2 && c[kBudgetChange] > 1) offloader.set_host_budget(options.host_budget_bytes);
  }
  require_within_budgets(options, offloader, device);
  offloader.begin_evaluation();
  const bool spilled = require_spilled(offloader);
  const MemoryPlan& plan = offloader.plan();
  if (kHostBudgets[c[kHost]] == "spilling" && spilled != (plan.host_minimum_bytes < plan.host_holding_bytes))
    throw std::runtime_error("a budget below what holds all gradients spills none");
  spilling_runs_ += spilled ? 1 : 0;
  const TokenBatch held_out(model.config(), 999);
  outcome.losses.push_back(
      std::bit_cast<uint32_t>(model.evaluate(ops, offloader, arena, held_out.view(), "eval/")));
  offloader.end_evaluation();
  require_recorded(options, recorded);
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    std::vector<std::byte> bytes(space.place(TensorId{t}).elements * bytes_of(training.type));
    offloader.read_parameter(TensorId{t}, bytes);
    outcome.parameters.insert(outcome.parameters.end(), bytes.begin(), bytes.end());
  }
  offloader.export_records([&](std::span<const std::byte> tiles) {
    outcome.records.insert(outcome.records.end(), tiles.begin(), tiles.end());
  });
  return outcome;
}

const Outcome& PlacementLaw::reference(const Combination& c) {
  const ReferenceKey key = {c[kPrecision], c[kAccumulation], c[kAccumulationType], c[kClipping],
                            c[kModel],     c[kOptimizer],    c[kMoments]};
  const auto found = references_.find(key);
  if (found != references_.end()) return found->second;
  const Training training = training_of(c);
  return references_.emplace(key, train_plainly(*make_law_model(c), training)).first->second;
}

}  // namespace terrace::laws
