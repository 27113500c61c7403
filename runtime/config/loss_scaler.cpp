#include <terrace/runtime/config/loss_scaler.h>

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
      now_{.scale = options.loss_scale > 0 ? options.loss_scale
                                           : std::ldexp(1.0, static_cast<int>(options.initial_scale_power)),
           .hysteresis = std::max(options.hysteresis, 1u)} {
  if (is_scale(now_.scale)) return;
  throw Error(ErrorKind::config, {fmt::format("cannot scale the loss by {}", now_.scale), "fp16",
                                  "fp32 does not hold such a number",
                                  "set fp16.loss_scale to 0 and fp16.initial_scale_power to at most 127"});
}

void LossScaler::update(bool overflow) {
  if (!overflow) {
    const bool grows = now_.good_steps > 0 && now_.good_steps % std::max(options_.loss_scale_window, 1u) == 0;
    if (options_.consecutive_hysteresis || grows) now_.hysteresis = std::max(options_.hysteresis, 1u);
    if (grows && !is_static() && is_scale(now_.scale * kFactor)) now_.scale *= kFactor;
    ++now_.good_steps;
    now_.skipped_in_a_row = 0;
    return;
  }
  if (is_static() && now_.skipped_in_a_row + 1 == kSkippedInARow) {
    throw Error(ErrorKind::cancelled,
                {fmt::format("gradients overflow in fp16 in {} steps in a row", kSkippedInARow),
                 fmt::format("loss scale {} (fp16.loss_scale)", now_.scale), "the scale is static",
                 "lower fp16.loss_scale, set it to 0 for a dynamic scale, or train in bf16"});
  }
  if (!is_static() && now_.hysteresis == 1) {
    if (now_.scale == options_.min_loss_scale) {
      throw Error(
          ErrorKind::cancelled,
          {"gradients overflow in fp16 even at the smallest loss scale",
           fmt::format("loss scale {} (fp16.min_loss_scale)", now_.scale), "no smaller scale is allowed",
           "lower the learning rate or clip gradients, lower fp16.min_loss_scale, or train in bf16"});
    }
    now_.scale = std::max(now_.scale / kFactor, options_.min_loss_scale);
  } else if (now_.hysteresis > 1) {
    --now_.hysteresis;
  }
  now_.good_steps = 0;
  ++now_.skipped_steps;
  ++now_.skipped_in_a_row;
}

std::map<std::string, uint64_t> LossScaler::state() const {
  return {{kScaleBits, std::bit_cast<uint64_t>(now_.scale)},
          {kHysteresis, now_.hysteresis},
          {kGoodSteps, now_.good_steps},
          {kSkippedSteps, now_.skipped_steps}};
}

void LossScaler::restore(const std::map<std::string, uint64_t>& state, const std::string& origin) {
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    if (found != state.end()) return found->second;
    throw Error(ErrorKind::corrupt,
                {"cannot take up the loss scale", origin, fmt::format("it does not say its \"{}\"", name),
                 "resume from another checkpoint"});
  };
  restore({.scale = std::bit_cast<double>(number(kScaleBits)),
           .hysteresis = static_cast<uint32_t>(std::min<uint64_t>(number(kHysteresis), UINT32_MAX)),
           .good_steps = number(kGoodSteps),
           .skipped_steps = number(kSkippedSteps)},
          origin);
}

void LossScaler::restore(const LossScaleState& state, const std::string& origin) {
  if (!is_scale(state.scale) || state.hysteresis == 0) {
    throw Error(ErrorKind::corrupt, {"cannot take up the loss scale", origin,
                                     fmt::format("scale {}, hysteresis {}", state.scale, state.hysteresis),
                                     "resume from another checkpoint"});
  }
  const double scale = is_static() ? now_.scale : state.scale;
  now_ = state;
  now_.scale = scale;
  now_.hysteresis = std::min(state.hysteresis, std::max(options_.hysteresis, 1u));
}

}  // namespace terrace
