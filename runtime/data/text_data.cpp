#include <terrace/runtime/data/text_data.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/compute/counter_random.h>

namespace terrace {
namespace {

// Tells the random numbers of the data from those of the weights, which may have the same seed.
constexpr uint64_t kDataStream = 0x6461'7461'206f'7264;  // "data ord"

__extension__ using Wide = unsigned __int128;

// The training part of `bytes` bytes; both parts hold one sample and the byte after it.
uint64_t split(const TextFiles& files, const TextDataOptions& options) {
  TERRACE_ASSERT(options.context > 0, "a context of no tokens");
  TERRACE_ASSERT(options.validation_fraction >= 0 && options.validation_fraction < 1,
                 fmt::format("a validation part of {} of the data", options.validation_fraction));
  const uint64_t bytes = files.byte_count();
  const uint64_t sample = options.context + 1;
  const bool validates = options.validation_fraction > 0;
  if (bytes / (validates ? 2 : 1) < sample) {
    throw Error(
        ErrorKind::config,
        {"cannot train on", files.path().string(),
         fmt::format("it has {} bytes of text; samples of {} tokens need at least {}", bytes, options.context,
                     validates ? fmt::format("{}, half of them for validation", 2 * sample)
                               : fmt::format("{}", sample)),
         "give more text or a shorter context"});
  }
  if (!validates) return bytes;
  const auto wanted = static_cast<uint64_t>(static_cast<double>(bytes) * options.validation_fraction);
  return bytes - std::clamp(wanted, sample, bytes - sample);
}

using Counts = std::array<uint64_t, TextData::kVocabulary>;

Counts count_bytes(const TextFiles& files, uint64_t begin, uint64_t end) {
  Counts counts{};
  std::vector<uint8_t> buffer(static_cast<size_t>(std::min(end - begin, kMiB)));
  while (begin < end) {
    const std::span<uint8_t> piece(buffer.data(),
                                   static_cast<size_t>(std::min<uint64_t>(buffer.size(), end - begin)));
    files.read(begin, piece);
    for (const uint8_t byte : piece) ++counts[byte];
    begin += piece.size();
  }
  return counts;
}

}  // namespace

TextData::TextData(const std::filesystem::path& path, const TextDataOptions& options)
    : files_(path), options_(options), train_byte_count_(split(files_, options_)) {}

uint64_t TextData::window_begin(uint64_t step, uint32_t micro_batch, uint32_t sample) const {
  const uint64_t key = options_.seed ^ kDataStream;
  const auto bits =
      philox4x32({sample, micro_batch, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                 {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  const uint64_t random = uint64_t{bits[1]} << 32 | bits[0];
  const uint64_t place_count = train_byte_count_ - options_.context;
  // Uniform but for one part in 2^64 / place_count, without a loop.
  return static_cast<uint64_t>(Wide{random} * place_count >> 64);
}

void TextData::fill_window(uint64_t begin, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  // The bytes are read into the memory of the targets and widened from the back, each before it is written
  // over: target i takes the bytes from 4 i on, and those still to be widened are below i + 1.
  auto* bytes = reinterpret_cast<uint8_t*>(targets.data());
  static_assert(sizeof(int32_t) >= 2, "a window of one token needs two bytes");
  files_.read(begin, {bytes, tokens.size() + 1});
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = bytes[i];
  for (size_t i = targets.size(); i-- > 0;) targets[i] = bytes[i + 1];
}

void TextData::fill(uint64_t step, uint32_t micro_batch, std::span<int32_t> tokens,
                    std::span<int32_t> targets) const {
  TERRACE_ASSERT(tokens.size() == targets.size() && tokens.size() % options_.context == 0,
                 fmt::format("{} tokens and {} targets for samples of {}", tokens.size(), targets.size(),
                             options_.context));
  const auto context = static_cast<size_t>(options_.context);
  for (size_t sample = 0; sample * context < tokens.size(); ++sample) {
    fill_window(window_begin(step, micro_batch, static_cast<uint32_t>(sample)),
                tokens.subspan(sample * context, context), targets.subspan(sample * context, context));
  }
}

void TextData::fill_validation(uint64_t first_sample, uint64_t sample_count, std::span<int32_t> tokens,
                               std::span<int32_t> targets) const {
  const auto context = static_cast<size_t>(options_.context);
  TERRACE_ASSERT(validation_byte_count() > 0, "there is no validation part");
  TERRACE_ASSERT(
      tokens.size() == targets.size() && tokens.size() % context == 0,
      fmt::format("{} tokens and {} targets for samples of {}", tokens.size(), targets.size(), context));
  TERRACE_ASSERT(first_sample + tokens.size() / context <= sample_count,
                 fmt::format("samples from {} on of {}", first_sample, sample_count));
  const uint64_t last_begin = validation_byte_count() - context - 1;
  const uint64_t gap_count = std::max<uint64_t>(sample_count - 1, 1);
  for (size_t row = 0; row * context < tokens.size(); ++row) {
    const auto begin = static_cast<uint64_t>(Wide{last_begin} * (first_sample + row) / gap_count);
    fill_window(train_byte_count_ + begin, tokens.subspan(row * context, context),
                targets.subspan(row * context, context));
  }
}

double TextData::unigram_loss() const {
  const Counts train = count_bytes(files_, 0, train_byte_count_);
  const Counts seen =
      validation_byte_count() == 0 ? train : count_bytes(files_, train_byte_count_, files_.byte_count());
  const double train_total = static_cast<double>(train_byte_count_) + kVocabulary;
  double nats = 0;
  uint64_t seen_total = 0;
  for (size_t byte = 0; byte < kVocabulary; ++byte) {
    nats -=
        static_cast<double>(seen[byte]) * std::log((static_cast<double>(train[byte]) + 1.0) / train_total);
    seen_total += seen[byte];
  }
  return nats / static_cast<double>(seen_total);
}

}  // namespace terrace
