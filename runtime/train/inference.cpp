#include <terrace/runtime/train/inference.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/model/weights/load_weights.h>
#include <terrace/runtime/train/checkpoint/checkpoint_values.h>

namespace terrace {
namespace {

// The model's tensors without gradients and states.
std::vector<TensorSpec> frozen_tensors(const Model& model) {
  std::vector<TensorSpec> tensors = model.tensors();
  for (TensorSpec& tensor : tensors) tensor.trainable = false;
  return tensors;
}

// What is asked of the model, run dry. An evaluation uses what the next tokens use.
DryRun run_dry(const Model& model, const InferenceOptions& options, Workers& workers) {
  const std::unique_ptr<const Ops> dry_ops = make_dry_ops(options.compute, workers);
  const Ops& ops = *dry_ops;
  const uint64_t tokens = uint64_t{options.batch} * options.sequence;
  const MicroBatch batch{{static_cast<int32_t*>(nullptr), tokens},
                         {static_cast<int32_t*>(nullptr), tokens},
                         options.batch,
                         options.sequence};
  StackArena arena = StackArena::dry_run();
  UseRecorder recorder;
  if (options.evaluates) {
    model.evaluate(ops, recorder, arena, batch, "");
  } else {
    const std::span<float> nowhere(static_cast<float*>(nullptr),
                                   size_t{options.batch} * model.config().vocabulary);
    model.next_token_logits(ops, recorder, arena, batch, nowhere, "");
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

}  // namespace

struct Inference::Session {
  TrainConfig config;
  std::unique_ptr<Model> model;
  Workers workers;
  DryRun dry;
  OffloadOptions offload;
  TrainerPlan plan;
  FlatSpace space;
  std::unique_ptr<Computing> computing;
  const Ops& ops;
  Offloader offloader;
  StackArena arena;
  uint32_t batch;
  uint32_t sequence;
  bool evaluates;
  Log& log;

  Session(std::unique_ptr<Model> given, const InferenceOptions& options, Log& told)
      : config(without_states(options.config)),
        model(std::move(given)),
        workers(make_compute_threads(config.terrace)),
        dry(run_dry(*model, options, workers)),
        offload(offload_options(config, dry)),
        plan(make_plan(config, frozen_tensors(*model), dry, offload)),
        space(frozen_tensors(*model), plan.chunk_elements),
        computing(begin_computing(options.compute, offload.device_budget_bytes, config.terrace.strict,
                                  workers, processor_products(config))),
        ops(computing->ops()),
        offloader(space, offload, dry.trace, computing->device(), workers, told),
        arena(offloader.work_memory()),
        batch(options.batch),
        sequence(options.sequence),
        evaluates(options.evaluates),
        log(told) {}

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
  return session_->plan;
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
  p.offloader.begin_evaluation();
  p.model->next_token_logits(p.ops, p.offloader, p.arena, batch, logits, "");
  p.offloader.end_evaluation();
}

}  // namespace terrace
