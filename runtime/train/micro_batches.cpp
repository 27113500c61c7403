#include <terrace/runtime/train/micro_batches.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

MicroBatches::MicroBatches(const Model& model, const TrainingData& data, const Ops& ops, Offloader& offloader,
                           const BatchConfig& batch, const Clock& clock)
    : model_(model),
      data_(data),
      ops_(ops),
      offloader_(offloader),
      batch_(batch),
      clock_(clock),
      arena_(offloader.work_memory()),
      prefixes_(micro_batch_prefixes(batch)) {
  const ModelConfig& config = model.config();
  TERRACE_ASSERT(data.context() == config.context && data.vocabulary() <= config.vocabulary,
                 fmt::format("samples of {} tokens below {} for {} below {}", data.context(),
                             data.vocabulary(), config.context, config.vocabulary));
  const size_t tokens_each = size_t{batch.micro_batch_size} * config.context;
  const uint32_t together = batch.layer_major ? batch.rounds().count() : 1;
  tokens_.resize(together * tokens_each);
  targets_.resize(tokens_.size());
  for (uint32_t m = 0; m < together; ++m) {
    runs_.push_back(
        {{std::span(tokens_).subspan(m * tokens_each, tokens_each),
          std::span(targets_).subspan(m * tokens_each, tokens_each), batch.micro_batch_size, config.context},
         prefixes_[m]});
  }
}

MicroBatches::Result MicroBatches::run(uint64_t first_sample, float loss_scale,
                                       FunctionRef<void()> before_last) {
  const float scale = loss_scale / static_cast<float>(batch_.micro_batches);
  Result result;
  use_ns_.clear();
  PassTimer timed(offloader_, clock_, use_ns_);
  if (batch_.layer_major) {
    before_last();
    result.loss = run_together(first_sample, timed, scale);
  } else {
    result.loss = run_in_turn(first_sample, timed, scale, before_last);
  }
  result.loss /= batch_.micro_batches;
  result.samples = batch_.train_batch_size();
  result.tokens = result.samples * model_.config().context;
  result.forward_ns = timed.forward_ns();
  return result;
}

// Returns the sum of the losses.
double MicroBatches::run_in_turn(uint64_t first_sample, PassTimer& timed, float scale,
                                 FunctionRef<void()> before_last) {
  double loss = 0;
  for (uint32_t m = 0; m < batch_.rounds().count(); ++m) {
    timed.begin_micro_batch();
    if (batch_.rounds().is_last(m)) before_last();
    data_.fill(first_sample + uint64_t{m} * batch_.micro_batch_size, tokens_, targets_);
    {
      // Operations without a lease compute too; what the offloader does in between it says itself.
      const TimeScope computing(offloader_.time(), TimeCause::compute);
      loss += model_.train_micro_batch(ops_, timed, arena_, runs_.front().batch, scale, prefixes_[m],
                                       offloader_.activations());
    }
    offloader_.end_micro_batch();
  }
  return loss;
}

double MicroBatches::run_together(uint64_t first_sample, PassTimer& timed, float scale) {
  timed.begin_micro_batch();
  data_.fill(first_sample, tokens_, targets_);
  {
    const TimeScope computing(offloader_.time(), TimeCause::compute);
    model_.train_layer_major(ops_, timed, arena_, runs_, scale, offloader_.activations());
  }
  offloader_.end_micro_batch();
  double loss = 0;
  for (const MicroBatchRun& run : runs_) loss += run.loss;
  return loss;
}

double MicroBatches::evaluate(uint64_t run, uint64_t runs) {
  const uint64_t samples = batch_.micro_batch_size;
  const MicroBatch& batch = runs_.front().batch;
  data_.fill_validation(run * samples, runs * samples, std::span(tokens_).first(batch.tokens.size()),
                        std::span(targets_).first(batch.tokens.size()));
  return model_.evaluate(ops_, offloader_, arena_, batch, fmt::format("eval{}/", run));
}

}  // namespace terrace
