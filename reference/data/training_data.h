// TrainingData: tokens cut into samples of one context each, the order in which a run sees them, and the
// held-out part. The samples of a run depend on the seed and on the number of samples seen, so its position
// is one number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <terrace/reference/data/sample_order.h>
#include <terrace/reference/data/token_source.h>

namespace terrace {

struct TrainingDataOptions {
  uint64_t context = 0;  // tokens of one sample, at least 1
  uint64_t seed = 42;
  // The last part of the tokens is never trained on. It is at least one sample long; 0: there is none. Data
  // with a validation part of their own ignore this.
  double validation_fraction = 0.05;
};

class TrainingData {
 public:
  // Throws Error when there are too few tokens for one sample per part.
  TrainingData(OpenTokens tokens, const TrainingDataOptions& options);

  uint32_t vocabulary() const { return train_->vocabulary(); }
  bool tokens_are_bytes() const { return train_->tokens_are_bytes(); }
  uint64_t context() const { return options_.context; }
  uint64_t seed() const { return options_.seed; }
  uint64_t train_token_count() const { return train_count_; }
  uint64_t validation_token_count() const { return validation_count_; }
  // The samples of an epoch. They lie side by side; the last tokens, fewer than a context, belong to none.
  uint64_t sample_count() const { return order_.sample_count(); }
  uint64_t epoch_of(uint64_t sample_number) const { return order_.epoch_of(sample_number); }
  // A number by which a resumed run recognises its data.
  uint64_t fingerprint() const { return train_->fingerprint(); }
  std::string description() const;

  // Fills tokens and targets[i], the token after tokens[i], with samples number first_sample, first_sample +
  // 1, ... of the run, one after the other. Both spans have the same size, a multiple of the context.
  // Thread-safe; allocates nothing.
  void fill(uint64_t first_sample, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  // Returns the first token of sample number `sample_number` of the run.
  uint64_t sample_begin(uint64_t sample_number) const;

  // Fills both with samples first_sample, first_sample + 1, ... of `sample_count` windows that are spread
  // evenly over the validation part, from its first token to its last. The windows overlap if they do not fit
  // side by side.
  void fill_validation(uint64_t first_sample, uint64_t sample_count, std::span<int32_t> tokens,
                       std::span<int32_t> targets) const;

  // Returns the loss, in nats per token, of the best model that ignores context: the cross entropy between
  // the validation part (or the training part without one) and the token frequencies of the training part,
  // with one added to every count. A model that has learned more than frequencies is below it. Reads each
  // part once; of a very large part it reads as many tokens as take seconds, spread evenly.
  double unigram_loss() const;

 private:
  const TokenSource& validation_source() const { return validation_ ? *validation_ : *train_; }
  void fill_window(const TokenSource& source, uint64_t begin, std::span<int32_t> tokens,
                   std::span<int32_t> targets) const;

  TrainingDataOptions options_;
  std::unique_ptr<TokenSource> train_;
  std::unique_ptr<TokenSource> validation_;  // null: the held-out part is the end of train_
  uint64_t train_count_ = 0;
  uint64_t validation_begin_ = 0;
  uint64_t validation_count_ = 0;
  SampleOrder order_;
};

}  // namespace terrace
