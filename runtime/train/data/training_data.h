// TrainingData: tokens cut into samples of one context each, the order in which a run sees them, and the part
// that is held out. What a run sees is a function of the seed and of how many samples it has seen, so its
// position is one number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <terrace/runtime/train/data/sample_order.h>
#include <terrace/runtime/train/data/token_source.h>

namespace terrace {

struct TrainingDataOptions {
  uint64_t context = 0;  // tokens of one sample, at least 1
  uint64_t seed = 42;
  // The last part of the tokens is never trained on. It is never shorter than one sample; 0: there is none.
  // Without effect on data that come with a part of their own for that.
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
  // Of an epoch. Samples lie side by side; the last tokens, fewer than a context, belong to none.
  uint64_t sample_count() const { return order_.sample_count(); }
  uint64_t epoch_of(uint64_t sample_number) const { return order_.epoch_of(sample_number); }
  // Whether a resumed run sees the data it saw before.
  uint64_t fingerprint() const { return train_->fingerprint(); }
  std::string description() const;

  // Fills tokens and targets[i], the token after tokens[i], with samples number first_sample,
  // first_sample + 1, ... of the run, one after the other. Both spans have the same size, a multiple of the
  // context. Thread-safe; allocates nothing.
  void fill(uint64_t first_sample, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  // Where sample number `sample_number` of the run begins, in tokens.
  uint64_t sample_begin(uint64_t sample_number) const;

  // The same with samples first_sample, first_sample + 1, ... of `sample_count` windows that are spread
  // evenly over the validation part, from its first token to its last. They overlap when there are more than
  // fit side by side.
  void fill_validation(uint64_t first_sample, uint64_t sample_count, std::span<int32_t> tokens,
                       std::span<int32_t> targets) const;

  // The loss, in nats per token, of the best model that ignores context: the cross entropy between the
  // validation part (the training part where there is none) and the token frequencies of the training part,
  // one added to every count. A model that has learned anything beyond frequencies is below it. Reads each
  // part once, or of a very large part as many tokens as take seconds, spread evenly over it.
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
