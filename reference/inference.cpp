#include <terrace/reference/inference.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/model/weights/load_weights.h>
#include <terrace/runtime/checkpoint/checkpoint_values.h>
#include <terrace/runtime/config/compute_threads.h>

namespace terrace {
namespace {

// The model's tensors without gradients and states.
std::vector<TensorSpec> frozen_tensors(const Model& model) {
  std::vector<TensorSpec> tensors = model.tensors();
  for (TensorSpec& tensor : tensors) tensor.trainable = false;
  return tensors;
}

MicroBatch dry_batch(uint32_t batch, uint32_t sequence) {
  const std::span<const int32_t> nowhere(static_cast<const int32_t*>(nullptr), size_t{batch} * sequence);
  return {nowhere, nowhere, batch, sequence};
}

// The tokens of a sequence that a cache of this inference holds.
uint32_t tokens_of_cache(const Model& model, const InferenceOptions& options) {
  return std::min(options.sequence, model.cacheable_tokens());
}

// The longest sequence without a cache, all of a cache's tokens at once, and its last token alone: one of
// them needs most memory. All use the same tensors in the same order.
void run_next_tokens_dry(const Model& model, const InferenceOptions& options, const Ops& ops, bool caches,
                         UseRecorder& recorder, StackArena& arena) {
  const std::span<float> logits(static_cast<float*>(nullptr),
                                size_t{options.batch} * model.config().vocabulary);
  const auto run = [&](UseRecorder& uses, uint32_t sequence, KeyValueCache* cache) {
    model.next_token_logits(ops, uses, arena, dry_batch(options.batch, sequence), logits, "", cache);
  };
  if (!caches) return run(recorder, options.sequence, nullptr);
  const uint32_t held = tokens_of_cache(model, options);
  KeyValueCache cache = model.make_cache(arena, options.batch, held);
  UseRecorder same_uses;
  if (held < options.sequence) run(same_uses, options.sequence, nullptr);
  run(recorder, held, &cache);
  cache.hold(held - 1);
  run(same_uses, 1, &cache);
}

// What is asked of the model, run dry. An evaluation uses what the next tokens use.
DryRun run_dry(const Model& model, const InferenceOptions& options, bool caches, Workers& workers) {
  const std::unique_ptr<const Ops> ops = make_dry_ops(options.compute, workers);
  StackArena arena = StackArena::dry_run();
  UseRecorder recorder;
  if (options.evaluates) {
    model.evaluate(*ops, recorder, arena, dry_batch(options.batch, options.sequence), "");
  } else {
    run_next_tokens_dry(model, options, *ops, caches, recorder, arena);
  }
  return {recorder.take_trace(), round_up(arena.peak_bytes(), 4096), 0, 0, {}, facts_of(options.compute)};
}

TrainConfig without_states(TrainConfig config) {
  config.placement.states = Placement::none;
  config.batch.micro_batches = 1;
  config.batch.layer_major = false;
  config.grad_accum_type.reset();
  config.terrace.update.reset();  // nothing is updated
  return config;
}

// Everything that is decided before memory is allocated.
struct PlannedInference {
  DryRun dry;
  OffloadOptions offload;
  TrainerPlan plan;
  CacheOutcome cache;
};

PlannedInference plan_inference(const Model& model, const InferenceOptions& options,
                                const TrainConfig& config, bool caches, Workers& workers) {
  PlannedInference planned;
  planned.dry = run_dry(model, options, caches, workers);
  planned.offload = offload_options(config, planned.dry);
  planned.plan = make_plan(config, frozen_tensors(model), planned.dry, planned.offload);
  planned.plan.parameter_count = model.parameter_count();
  return planned;
}

// With a cache if the budgets hold one, else without.
PlannedInference plan_inference(const Model& model, const InferenceOptions& options,
                                const TrainConfig& config, Workers& workers) {
  if (options.evaluates || !options.caches) return plan_inference(model, options, config, false, workers);
  StackArena arena = StackArena::dry_run();
  CacheOutcome outcome;
  outcome.bytes = model.make_cache(arena, options.batch, tokens_of_cache(model, options)).bytes();
  try {
    PlannedInference planned = plan_inference(model, options, config, true, workers);
    outcome.is_used = true;
    planned.cache = outcome;
    return planned;
  } catch (const ShortageError&) {  // then it runs without
  }
  PlannedInference planned = plan_inference(model, options, config, false, workers);
  if (config.terrace.device_memory_bytes) {
    const MemoryPlan& plan = planned.plan.memory;
    const uint64_t work_bytes =
        round_up(run_dry(model, options, true, workers).work_bytes, plan.device_granularity_bytes);
    outcome.device_needed_bytes = plan.device_bytes - plan.work_bytes + work_bytes;
  }
  planned.cache = outcome;
  return planned;
}

// HeldTokens: a cache of keys and values, and the tokens that they are of.
class HeldTokens {
 public:
  HeldTokens(const Model& model, const InferenceOptions& options, StackArena& arena)
      : cache_(model.make_cache(arena, options.batch, tokens_of_cache(model, options))) {
    tokens_.reserve(size_t{options.batch} * cache_.shape().capacity);
    rest_.reserve(tokens_.capacity());
  }

  KeyValueCache& cache() { return cache_; }
  bool has_room_for(const MicroBatch& asked) const { return asked.sequence <= cache_.shape().capacity; }
  // Holds what begins every sequence that is asked about, and returns the tokens after it. They lie in this
  // object until the next call.
  MicroBatch rest_of(const MicroBatch& asked);
  // The cache now holds all of these tokens.
  void remember(const MicroBatch& asked) {
    tokens_.assign(asked.tokens.begin(), asked.tokens.end());
    batch_ = asked.batch, sequence_ = asked.sequence;
  }

 private:
  uint32_t held_of(const MicroBatch& asked) const;

  KeyValueCache cache_;
  std::vector<int32_t> tokens_;  // of the last call, [batch_, sequence_]
  std::vector<int32_t> rest_;
  uint32_t batch_ = 0;
  uint32_t sequence_ = 0;
};

// One token of each sequence is computed in any case.
uint32_t HeldTokens::held_of(const MicroBatch& asked) const {
  if (asked.batch != batch_) return 0;
  uint32_t held = std::min(cache_.tokens(), asked.sequence - 1);
  for (size_t sample = 0; sample < batch_; ++sample) {
    const int32_t* const now = asked.tokens.data() + sample * asked.sequence;
    const int32_t* const before = tokens_.data() + sample * sequence_;
    held = static_cast<uint32_t>(std::mismatch(now, now + held, before).first - now);
  }
  return held;
}

MicroBatch HeldTokens::rest_of(const MicroBatch& asked) {
  const uint32_t held = held_of(asked);
  cache_.hold(held);
  rest_.clear();
  for (size_t sample = 0; sample < asked.batch; ++sample) {
    const auto tokens = asked.tokens.subspan(sample * asked.sequence, asked.sequence).subspan(held);
    rest_.insert(rest_.end(), tokens.begin(), tokens.end());
  }
  return {rest_, rest_, asked.batch, asked.sequence - held};
}

}  // namespace

struct Inference::Session {
  TrainConfig config;
  std::unique_ptr<Model> model;
  Workers workers;
  const PlannedInference planned;
  FlatSpace space;
  std::unique_ptr<Computing> computing;
  const Ops& ops;
  Offloader offloader;
  StackArena arena;
  std::optional<HeldTokens> held;
  uint32_t batch;
  uint32_t sequence;
  bool evaluates;
  Log& log;

  Session(std::unique_ptr<Model> given, const InferenceOptions& options, Log& told)
      : config(without_states(options.config)),
        model(std::move(given)),
        workers(make_compute_threads(config.terrace)),
        planned(plan_inference(*model, options, config, workers)),
        space(frozen_tensors(*model), planned.plan.chunk_elements),
        computing(begin_computing(options.compute, planned.offload.device_budget_bytes, config.terrace.strict,
                                  workers, processor_products(config))),
        ops(computing->ops()),
        offloader(space, planned.offload, planned.dry.trace, computing->device(), workers, told),
        arena(offloader.work_memory()),
        batch(options.batch),
        sequence(options.sequence),
        evaluates(options.evaluates),
        log(told) {
    if (planned.cache.is_used) held.emplace(*model, options, arena);
  }

  void require(const MicroBatch& asked) const {
    TERRACE_ASSERT(
        asked.batch <= batch && asked.sequence <= sequence,
        fmt::format("{} sequences of {} tokens for {} of {}", asked.batch, asked.sequence, batch, sequence));
  }
};

Inference::Inference(std::unique_ptr<Model> model, const InferenceOptions& options, Log& log)
    : session_(std::make_unique<Session>(std::move(model), options, log)) {}
Inference::~Inference() = default;

const Model& Inference::model() const {
  return *session_->model;
}
const TrainerPlan& Inference::plan() const {
  return session_->planned.plan;
}
const CacheOutcome& Inference::cache() const {
  return session_->planned.cache;
}

void Inference::load_folder(const std::filesystem::path& folder) {
  load_weights(WeightFolder(folder), *session_->model, session_->offloader, session_->log);
}

void Inference::load_checkpoint(const std::filesystem::path& path) {
  const FlatSpace trained(session_->model->tensors(), kTileElements);
  CheckpointValues values(path, trained);
  ProgressReport progress(session_->log, fmt::format("loading {}", path.string()),
                          session_->model->parameter_count() * sizeof(float));
  session_->offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> out) {
    values.read(tensor, first, out);
    progress.add(out.size_bytes());
  });
}

// An evaluation of its own each time: after the first, the order of uses is known and parameters are fetched
// ahead.
float Inference::evaluate(const MicroBatch& batch) {
  Session& p = *session_;
  p.require(batch);
  TERRACE_ASSERT(p.evaluates, "planned for next tokens only");
  p.offloader.begin_evaluation();
  const float loss = p.model->evaluate(p.ops, p.offloader, p.arena, batch, "");
  p.offloader.end_evaluation();
  return loss;
}

void Inference::next_token_logits(const MicroBatch& batch, std::span<float> logits) {
  Session& p = *session_;
  p.require(batch);
  const bool is_held = p.held && p.held->has_room_for(batch);
  p.offloader.begin_evaluation();
  if (is_held) {
    p.model->next_token_logits(p.ops, p.offloader, p.arena, p.held->rest_of(batch), logits, "",
                               &p.held->cache());
    p.held->remember(batch);
  } else {
    p.model->next_token_logits(p.ops, p.offloader, p.arena, batch, logits, "");
  }
  p.offloader.end_evaluation();
}

}  // namespace terrace
