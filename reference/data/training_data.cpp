#include <terrace/reference/data/training_data.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/reference/data/internal/data_errors.h>

namespace terrace {
namespace {

__extension__ using Wide = unsigned __int128;

// unigram_loss() counts at most these, in pieces.
constexpr uint64_t kMostCounted = uint64_t{1} << 26;
constexpr uint64_t kPiece = uint64_t{1} << 16;
constexpr const char* kGiveMore = "give more data or a shorter context";

void require_one_sample(const TokenSource& source, uint64_t context) {
  if (source.token_count() > context) return;
  data::cannot_use(source.path(),
                   fmt::format("it has {} tokens; samples of {} tokens need at least {}",
                               source.token_count(), context, context + 1),
                   kGiveMore);
}

// How many of the tokens are for training; both parts hold one sample and the token after it.
uint64_t split(const OpenTokens& tokens, const TrainingDataOptions& options) {
  TERRACE_ASSERT(tokens.train != nullptr, "no tokens to train on");
  TERRACE_ASSERT(options.context > 0, "a context of no tokens");
  TERRACE_ASSERT(options.validation_fraction >= 0 && options.validation_fraction < 1,
                 fmt::format("a validation part of {} of the data", options.validation_fraction));
  const uint64_t count = tokens.train->token_count();
  if (tokens.validation != nullptr || options.validation_fraction == 0) {
    require_one_sample(*tokens.train, options.context);
    if (tokens.validation != nullptr) require_one_sample(*tokens.validation, options.context);
    return count;
  }
  const uint64_t sample = options.context + 1;
  if (count / 2 < sample) {
    data::cannot_use(tokens.train->path(),
                     fmt::format("it has {} tokens; samples of {} tokens need at least {}, half of them for "
                                 "validation",
                                 count, options.context, 2 * sample),
                     kGiveMore);
  }
  const auto wanted = static_cast<uint64_t>(static_cast<double>(count) * options.validation_fraction);
  return count - std::clamp(wanted, sample, count - sample);
}

// Adds how often each token occurs in [begin, begin + count) to `counts`; returns how many were counted.
uint64_t count_tokens(const TokenSource& source, uint64_t begin, uint64_t count,
                      std::vector<uint64_t>& counts) {
  std::vector<int32_t> buffer(static_cast<size_t>(std::min(count, kPiece)));
  const uint64_t piece_count = divide_up(count, kPiece);
  const uint64_t read_count = std::min(piece_count, kMostCounted / kPiece);
  uint64_t total = 0;
  for (uint64_t p = 0; p < read_count; ++p) {
    const auto piece = static_cast<uint64_t>(Wide{p} * piece_count / read_count);
    const auto size = static_cast<size_t>(std::min(kPiece, count - piece * kPiece));
    source.read(begin + piece * kPiece, std::span(buffer).first(size));
    for (const int32_t token : std::span(buffer).first(size)) ++counts[static_cast<size_t>(token)];
    total += size;
  }
  return total;
}

}  // namespace

TrainingData::TrainingData(OpenTokens tokens, const TrainingDataOptions& options)
    : options_(options),
      train_count_(split(tokens, options)),
      order_(options.seed, (train_count_ - 1) / options.context) {
  train_ = std::move(tokens.train);
  validation_ = std::move(tokens.validation);
  validation_begin_ = validation_ ? 0 : train_count_;
  validation_count_ = validation_source().token_count() - validation_begin_;
}

std::string TrainingData::description() const {
  if (!validation_) return train_->description();
  return fmt::format("{}; held out: {}", train_->description(), validation_->description());
}

uint64_t TrainingData::sample_begin(uint64_t sample_number) const {
  return order_.at(sample_number) * options_.context;
}

void TrainingData::fill_window(const TokenSource& source, uint64_t begin, std::span<int32_t> tokens,
                               std::span<int32_t> targets) const {
  source.read(begin, tokens.first(1));
  source.read(begin + 1, targets);
  std::copy(targets.begin(), targets.end() - 1, tokens.begin() + 1);
}

void TrainingData::fill(uint64_t first_sample, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  const auto context = static_cast<size_t>(options_.context);
  TERRACE_ASSERT(
      tokens.size() == targets.size() && tokens.size() % context == 0,
      fmt::format("{} tokens and {} targets for samples of {}", tokens.size(), targets.size(), context));
  for (size_t row = 0; row * context < tokens.size(); ++row) {
    fill_window(*train_, sample_begin(first_sample + row), tokens.subspan(row * context, context),
                targets.subspan(row * context, context));
  }
}

void TrainingData::fill_validation(uint64_t first_sample, uint64_t sample_count, std::span<int32_t> tokens,
                                   std::span<int32_t> targets) const {
  const auto context = static_cast<size_t>(options_.context);
  TERRACE_ASSERT(validation_count_ > 0, "there is no validation part");
  TERRACE_ASSERT(
      tokens.size() == targets.size() && tokens.size() % context == 0,
      fmt::format("{} tokens and {} targets for samples of {}", tokens.size(), targets.size(), context));
  TERRACE_ASSERT(first_sample + tokens.size() / context <= sample_count,
                 fmt::format("samples from {} on of {}", first_sample, sample_count));
  const uint64_t last_begin = validation_count_ - context - 1;
  const uint64_t gap_count = std::max<uint64_t>(sample_count - 1, 1);
  for (size_t row = 0; row * context < tokens.size(); ++row) {
    const auto begin = static_cast<uint64_t>(Wide{last_begin} * (first_sample + row) / gap_count);
    fill_window(validation_source(), validation_begin_ + begin, tokens.subspan(row * context, context),
                targets.subspan(row * context, context));
  }
}

double TrainingData::unigram_loss() const {
  std::vector<uint64_t> train(vocabulary());
  const uint64_t train_total = count_tokens(*train_, 0, train_count_, train);
  std::vector<uint64_t> held_out;
  uint64_t seen_total = train_total;
  if (validation_count_ > 0) {
    held_out.resize(vocabulary());
    seen_total = count_tokens(validation_source(), validation_begin_, validation_count_, held_out);
  }
  const std::vector<uint64_t>& seen = validation_count_ > 0 ? held_out : train;
  const double smoothed_total = static_cast<double>(train_total) + vocabulary();
  double nats = 0;
  for (size_t token = 0; token < train.size(); ++token) {
    nats -= static_cast<double>(seen[token]) *
            std::log((static_cast<double>(train[token]) + 1.0) / smoothed_total);
  }
  return nats / static_cast<double>(seen_total);
}

}  // namespace terrace
