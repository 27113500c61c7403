// What is trained, put together: tensors, their first values, and passes over them.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/transformer/internal/decoder.h>
#include <terrace/reference/model/transformer/internal/decoder_pass.h>
#include <terrace/reference/model/transformer/internal/layer_major_pass.h>
#include <terrace/reference/model/transformer/internal/stage_pass.h>

namespace terrace {
namespace decoder {
namespace {

// Streams of first values are a weight's index in this domain, apart from every other use of the seed.
constexpr uint64_t kFirstValuesDomain = uint64_t{1} << 32;

[[noreturn]] void refuse(const std::string& subject, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot build the model", subject, reason, advice});
}

void check_ids(const ModelConfig& config, std::span<const int32_t> ids) {
  const auto wrong = std::find_if(ids.begin(), ids.end(), [&](int32_t id) {
    return id < 0 || static_cast<uint32_t>(id) >= config.vocabulary;
  });
  if (wrong == ids.end()) return;
  throw Error(ErrorKind::config,
              {"cannot look up a token", fmt::format("token {}", *wrong),
               fmt::format("the model's vocabulary has {} tokens", config.vocabulary),
               "train on data of this vocabulary, or set the model's vocabulary to the data's"});
}

void check_tokens(const ModelConfig& config, const MicroBatch& batch, bool dry_run) {
  TERRACE_ASSERT(batch.tokens.size() == uint64_t{batch.batch} * batch.sequence && !batch.tokens.empty(),
                 fmt::format("a micro-batch of {} x {} has {} tokens", batch.batch, batch.sequence,
                             batch.tokens.size()));
  if (batch.sequence > config.context) {
    throw Error(ErrorKind::config,
                {"cannot run a micro-batch", fmt::format("sequence of {} tokens", batch.sequence),
                 fmt::format("the model's context is {} tokens", config.context),
                 "use shorter sequences, or a model with a longer context"});
  }
  if (!dry_run) check_ids(config, batch.tokens);
}

void check_cache(const KeyValueCache& cache, const MicroBatch& batch) {
  const KeyValueCache::Shape& shape = cache.shape();
  TERRACE_ASSERT(batch.batch <= shape.batch && cache.tokens() + batch.sequence <= shape.capacity,
                 fmt::format("{} x {} tokens after {}, in a cache of {} x {}", batch.batch, batch.sequence,
                             cache.tokens(), shape.batch, shape.capacity));
}

void check_batch(const ModelConfig& config, const MicroBatch& batch, bool dry_run) {
  check_tokens(config, batch, dry_run);
  TERRACE_ASSERT(batch.targets.size() == batch.tokens.size(),
                 fmt::format("{} tokens have {} targets", batch.tokens.size(), batch.targets.size()));
  if (!dry_run) check_ids(config, batch.targets);
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const ModelOptions& options)
    : config_(config), options_(options), tensors_(tensors_of(config_, options_)) {}

void Decoder::fill_first(const FirstValues& values, uint64_t first_element, std::span<float> out) const {
  if (values.bound != 0.0f) {
    const RandomStream stream{options_.seed, kFirstValuesDomain | values.stream};
    for (uint64_t i = 0; i < out.size(); ++i)
      out[i] = (2.0f * uniform(stream, first_element + i) - 1.0f) * values.bound;
  } else if (values.deviation == 0.0f) {
    std::fill(out.begin(), out.end(), values.constant);
  } else {
    fill_normal({.seed = options_.seed, .stream = kFirstValuesDomain | values.stream},
                values.first_element + first_element, values.deviation, out);
  }
}

void Decoder::initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const {
  TERRACE_ASSERT(index_of(tensor) < tensors_.first_values.size(),
                 fmt::format("there is no tensor {}", index_of(tensor)));
  const FirstValues& values = tensors_.first_values[index_of(tensor)];
  if (!values.coded.is_coded()) return fill_first(values, first_element, out);
  fill_words(values.coded, first_element, out,
             [&](uint64_t first, std::span<float> weights) { fill_first(values, first, weights); });
}

float Decoder::train_micro_batch(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                 const MicroBatch& batch, float loss_scale, std::string_view operation_prefix,
                                 ActivationStore* store) const {
  check_batch(config_, batch, ops.is_dry_run());
  return DecoderPass({config_, options_, tensors_, ops, access, arena, batch, operation_prefix, store})
      .train(loss_scale);
}

void Decoder::train_layer_major(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                std::span<MicroBatchRun> runs, float loss_scale,
                                ActivationStore* store) const {
  TERRACE_ASSERT(!runs.empty(), "nothing is to be trained on");
  const MicroBatch& first = runs.front().batch;
  for (const MicroBatchRun& run : runs) {
    check_batch(config_, run.batch, ops.is_dry_run());
    TERRACE_ASSERT(run.batch.batch == first.batch && run.batch.sequence == first.sequence,
                   "micro-batches that run together have one shape");
  }
  TERRACE_ASSERT(
      !config_.tied_embeddings || options_.late_head_gradient || !tensors_.any_trainable(tensors_.tokens),
      "the gradients of tied embeddings would wait for each other in all micro-batches");
  LayerMajorPass({config_, options_, tensors_, ops, access, arena, first, "", store}, runs).train(loss_scale);
}

void Decoder::train_stage(const Ops& ops, ParameterAccess& access, StackArena& arena,
                          std::span<const MicroBatchRun> runs,
                          FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at,
                          ActivationStore* store) const {
  TERRACE_ASSERT(config_.part && ops.is_dry_run() && !runs.empty(), "a stage of a pipeline is run dry alone");
  StagePass({config_, options_, tensors_, ops, access, arena, runs.front().batch, "", store}, runs, at)
      .train();
}

float Decoder::evaluate(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                        std::string_view operation_prefix) const {
  check_batch(config_, batch, ops.is_dry_run());
  return DecoderPass({config_, options_, tensors_, ops, access, arena, batch, operation_prefix}).evaluate();
}

void Decoder::next_token_logits(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                const MicroBatch& batch, std::span<float> logits,
                                std::string_view operation_prefix, KeyValueCache* cache) const {
  check_tokens(config_, batch, ops.is_dry_run());
  if (cache != nullptr) check_cache(*cache, batch);
  DecoderPass({config_, options_, tensors_, ops, access, arena, batch, operation_prefix, nullptr, cache})
      .next_token_logits(logits);
}

}  // namespace decoder

std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelOptions& options) {
  if (options.quantize_base != WeightCode::none && !options.lora)
    decoder::refuse(fmt::format("a base in {}", name_of(options.quantize_base)),
                    "its weights would be trained, and codes cannot be", "train adapters beside it");
  auto model = std::make_unique<decoder::Decoder>(completed(config), options);
  const std::vector<TensorSpec> tensors = model->tensors();
  // Of a pipeline another stage may be the one that trains.
  if (!config.part &&
      std::none_of(tensors.begin(), tensors.end(), [](const TensorSpec& t) { return t.trainable; })) {
    decoder::refuse("frozen weights", "nothing is left to train", "freeze fewer weights");
  }
  return model;
}

}  // namespace terrace
