#include <terrace/reference/micro_batches.h>

#include <fmt/format.h>

#include <numeric>

#include <terrace/base/assert.h>
#include <terrace/reference/setup/training_setup.h>

namespace terrace {

MicroBatches::MicroBatches(const Model& model, const TrainingData& data, const StepOps& ops,
                           Offloader& offloader, const BatchConfig& batch, const WatchedVotes& ranks,
                           const Clock& clock)
    : model_(model),
      data_(data),
      ops_(ops),
      offloader_(offloader),
      batch_(batch),
      ranks_(ranks),
      clock_(clock),
      arena_(offloader.work_memory()),
      prefixes_(micro_batch_prefixes(batch)),
      losses_(batch.rounds().count()) {
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
    run_together(first_sample, timed, scale);
  } else {
    run_in_turn(first_sample, timed, scale, before_last);
  }
  result.loss = sum_of_losses() / batch_.micro_batches;
  result.samples = batch_.train_batch_size();
  result.tokens = result.samples * model_.config().context;
  result.forward_ns = timed.forward_ns();
  return result;
}

// In the order of micro-batches, as one rank adds them.
double MicroBatches::sum_of_losses() const {
  if (ranks_.count() == 1) return std::accumulate(losses_.begin(), losses_.end(), 0.0);
  const std::vector<double> all = ranks_.of_all("the losses", std::span<const double>(losses_));
  const StepRounds rounds = batch_.rounds();
  double sum = 0;
  for (uint32_t m = 0; m < batch_.micro_batches; ++m)
    sum += all[m % rounds.ranks * rounds.count() + m / rounds.ranks];
  return sum;
}

uint64_t MicroBatches::sample_of(uint64_t first_sample, uint32_t round) const {
  return first_sample + uint64_t{batch_.rounds().number(round, ranks_.rank())} * batch_.micro_batch_size;
}

void MicroBatches::run_in_turn(uint64_t first_sample, PassTimer& timed, float scale,
                               FunctionRef<void()> before_last) {
  const StepRounds rounds = batch_.rounds();
  for (uint32_t round = 0; round < rounds.count(); ++round) {
    timed.begin_micro_batch();
    if (rounds.is_last(round)) before_last();
    const bool has_data = rounds.has(round, ranks_.rank());
    if (has_data) data_.fill(sample_of(first_sample, round), tokens_, targets_);
    {
      // Operations without a lease compute too; what the offloader does in between it says itself.
      const TimeScope computing(offloader_.time(), TimeCause::compute);
      losses_[round] =
          model_.train_micro_batch(has_data ? ops_.computing : ops_.dry, timed, arena_, runs_.front().batch,
                                   scale, prefixes_[round], offloader_.activations());
    }
    offloader_.end_micro_batch();
  }
}

// Where a rank has no micro-batch in a round, it computes the one before once more, and nobody looks at it.
void MicroBatches::run_together(uint64_t first_sample, PassTimer& timed, float scale) {
  timed.begin_micro_batch();
  const size_t tokens_each = runs_.front().batch.tokens.size();
  for (uint32_t round = 0; round < runs_.size(); ++round) {
    const uint32_t with_data = batch_.rounds().has(round, ranks_.rank()) || round == 0 ? round : round - 1;
    data_.fill(sample_of(first_sample, with_data),
               std::span(tokens_).subspan(round * tokens_each, tokens_each),
               std::span(targets_).subspan(round * tokens_each, tokens_each));
  }
  {
    const TimeScope computing(offloader_.time(), TimeCause::compute);
    model_.train_layer_major(ops_.computing, timed, arena_, runs_, scale, offloader_.activations());
  }
  offloader_.end_micro_batch();
  for (size_t round = 0; round < runs_.size(); ++round) losses_[round] = runs_[round].loss;
}

double MicroBatches::evaluate(uint64_t first, uint64_t runs) {
  const uint64_t samples = batch_.micro_batch_size, run = first + ranks_.rank();
  const MicroBatch& batch = runs_.front().batch;
  if (run < runs) {
    data_.fill_validation(run * samples, runs * samples, std::span(tokens_).first(batch.tokens.size()),
                          std::span(targets_).first(batch.tokens.size()));
  }
  const double loss = model_.evaluate(run < runs ? ops_.computing : ops_.dry, offloader_, arena_, batch,
                                      fmt::format("eval{}/", first / ranks_.count()));
  if (ranks_.count() == 1) return loss;
  double sum = 0;
  const std::vector<double> losses = ranks_.of_all("the losses", loss);
  for (uint64_t r = 0; r < losses.size() && first + r < runs; ++r) sum += losses[r];
  return sum;
}

}  // namespace terrace
