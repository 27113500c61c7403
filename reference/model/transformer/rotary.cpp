#include <algorithm>
#include <cmath>
#include <numbers>

#include <terrace/base/assert.h>
#include <terrace/reference/model/transformer/internal/rotary.h>

namespace terrace::decoder {
namespace {

constexpr float kTurn = 2.0f * std::numbers::pi_v<float>;

// frequencies[i] = base^(-2i / size).
void fill_plain(double base, std::span<float> frequencies) {
  const auto size = static_cast<float>(2 * frequencies.size());
  for (uint64_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / size;
    frequencies[i] = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
}

// "NTK-aware": the base grows with the sequence, so that the slowest pair sees about the angles it was
// trained on. Equal to no scaling up to the context of pre-training.
double dynamic_base(const ModelConfig& config, uint64_t sequence) {
  const RopeScaling& rope = config.rope;
  const double size = config.head_size, original = rope.original_context;
  const double length = std::max(static_cast<double>(sequence), original);
  const double growth = rope.factor * length / original - (rope.factor - 1.0);
  return config.rope_theta * std::pow(growth, size / (size - 2.0));
}

// Llama 3.1: short waves stay, long ones are stretched by the factor, those between are a mixture.
void stretch_llama3(const RopeScaling& rope, std::span<float> frequencies) {
  const auto factor = static_cast<float>(rope.factor);
  const auto original = static_cast<float>(rope.original_context);
  const auto low = static_cast<float>(rope.low_frequency_factor);
  const auto high = static_cast<float>(rope.high_frequency_factor);
  for (float& frequency : frequencies) {
    const float wave = kTurn / frequency;
    if (wave < original / high) continue;
    if (wave > original / low) {
      frequency /= factor;
    } else {
      const float kept = (original / wave - low) / (high - low);
      frequency = (1.0f - kept) * frequency / factor + kept * frequency;
    }
  }
}

// YaRN (Peng et al., arXiv:2309.00071): a ramp over the pairs from those that turn often, which stay, to
// those that turn seldom, which are stretched.
void stretch_yarn(const ModelConfig& config, std::span<float> frequencies) {
  const RopeScaling& rope = config.rope;
  const double size = config.head_size;
  // The pair that turns `rotations` times within the context of pre-training.
  const auto pair_of = [&](double rotations) {
    return size * std::log(rope.original_context / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, size - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const auto stretched =
        static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    frequencies[i] =
        frequencies[i] / static_cast<float>(rope.factor) * stretched + frequencies[i] * (1.0f - stretched);
  }
}

float yarn_attention_factor(const RopeScaling& rope) {
  if (rope.attention_factor != 0.0) return static_cast<float>(rope.attention_factor);
  return rope.factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * std::log(rope.factor) + 1.0);
}

}  // namespace

void fill_rotary_frequencies(const ModelConfig& config, uint64_t sequence, std::span<float> frequencies) {
  TERRACE_ASSERT(frequencies.size() == config.head_size / 2, "a head has another number of pairs");
  const RopeScaling& rope = config.rope;
  fill_plain(rope.kind == RopeScalingKind::dynamic ? dynamic_base(config, sequence) : config.rope_theta,
             frequencies);
  if (rope.kind == RopeScalingKind::llama3) stretch_llama3(rope, frequencies);
  if (rope.kind == RopeScalingKind::yarn) stretch_yarn(config, frequencies);
  if (rope.kind == RopeScalingKind::linear) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
  }
}

void fill_rotary_table(const ModelConfig& config, uint64_t first, std::span<const float> frequencies,
                       std::span<float> cosines, std::span<float> sines) {
  const uint64_t half = frequencies.size();
  TERRACE_ASSERT(cosines.size() % half == 0 && sines.size() == cosines.size(),
                 "a rotary table has another size");
  const uint64_t sequence = cosines.size() / half;
  const float factor = config.rope.kind == RopeScalingKind::yarn ? yarn_attention_factor(config.rope) : 1.0f;
  for (uint64_t place = 0; place < sequence; ++place) {
    for (uint64_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32, as transformers does.
      const double angle = static_cast<float>(first + place) * frequencies[i];
      cosines[place * half + i] = static_cast<float>(std::cos(angle)) * factor;
      sines[place * half + i] = static_cast<float>(std::sin(angle)) * factor;
    }
  }
}

}  // namespace terrace::decoder
