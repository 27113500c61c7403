#include <terrace/runtime/train/setup/loss_scaler.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr double kFactor = 2;
constexpr uint32_t kSkippedInARow = 10;  // with a static scale, until the run ends
// Activations and the gradient of the loss are fp32: no scale may be more than fp32 holds.
constexpr double kLargest = std::numeric_limits<float>::max();

// The names in a checkpoint.
constexpr const char* kScaleBits = "scale_bits";
constexpr const char* kHysteresis = "hysteresis";
constexpr const char* kGoodSteps = "good_steps";
constexpr const char* kSkippedSteps = "skipped_steps";

bool is_scale(double value) {
  return value > 0 && value <= kLargest;
}

}  // namespace

LossScaler::LossScaler(const Fp16Config& options)
    : options_(options),
      scale_(options.loss_scale > 0 ? options.loss_scale
                                    : std::ldexp(1.0, static_cast<int>(options.initial_scale_power))),
      hysteresis_(std::max(options.hysteresis, 1u)) {
  if (is_scale(scale_)) return;
  throw Error(ErrorKind::config,
              {fmt::format("cannot scale the loss by {}", scale_), "fp16", "fp32 does not hold such a number",
               "set fp16.loss_scale to 0 and fp16.initial_scale_power to at most 127"});
}

void LossScaler::update(bool overflow) {
  if (!overflow) {
    const bool grows = good_steps_ > 0 && good_steps_ % std::max(options_.loss_scale_window, 1u) == 0;
    if (options_.consecutive_hysteresis || grows) hysteresis_ = std::max(options_.hysteresis, 1u);
    if (grows && !is_static() && is_scale(scale_ * kFactor)) scale_ *= kFactor;
    ++good_steps_;
    skipped_in_a_row_ = 0;
    return;
  }
  if (is_static() && skipped_in_a_row_ + 1 == kSkippedInARow) {
    throw Error(ErrorKind::cancelled,
                {fmt::format("gradients overflow in fp16 in {} steps in a row", kSkippedInARow),
                 fmt::format("loss scale {} (fp16.loss_scale)", scale_), "the scale is static",
                 "lower fp16.loss_scale, set it to 0 for a dynamic scale, or train in bf16"});
  }
  if (!is_static() && hysteresis_ == 1) {
    if (scale_ == options_.min_loss_scale) {
      throw Error(ErrorKind::cancelled,
                  {"gradients overflow in fp16 even at the smallest loss scale",
                   fmt::format("loss scale {} (fp16.min_loss_scale)", scale_), "no smaller scale is allowed",
                   "lower the learning rate or clip gradients, lower fp16.min_loss_scale, or train in bf16"});
    }
    scale_ = std::max(scale_ / kFactor, options_.min_loss_scale);
  } else if (hysteresis_ > 1) {
    --hysteresis_;
  }
  good_steps_ = 0;
  ++skipped_steps_;
  ++skipped_in_a_row_;
}

std::map<std::string, uint64_t> LossScaler::state() const {
  return {{kScaleBits, std::bit_cast<uint64_t>(scale_)},
          {kHysteresis, hysteresis_},
          {kGoodSteps, good_steps_},
          {kSkippedSteps, skipped_steps_}};
}

void LossScaler::restore(const std::map<std::string, uint64_t>& state, const std::string& origin) {
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    if (found != state.end()) return found->second;
    throw Error(ErrorKind::corrupt,
                {"cannot take up the loss scale", origin, fmt::format("it does not say its \"{}\"", name),
                 "resume from another checkpoint"});
  };
  const auto scale = std::bit_cast<double>(number(kScaleBits));
  const uint64_t hysteresis = number(kHysteresis), good = number(kGoodSteps), skipped = number(kSkippedSteps);
  if (!is_scale(scale) || hysteresis == 0) {
    throw Error(ErrorKind::corrupt, {"cannot take up the loss scale", origin,
                                     fmt::format("scale {}, hysteresis {}", scale, hysteresis),
                                     "resume from another checkpoint"});
  }
  if (!is_static()) scale_ = scale;
  hysteresis_ = static_cast<uint32_t>(std::min<uint64_t>(hysteresis, std::max(options_.hysteresis, 1u)));
  good_steps_ = good;
  skipped_steps_ = skipped;
}

}  // namespace terrace
