#include <terrace/reference/model/transformer/sampling.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  TERRACE_ASSERT(!logits.empty() && uniform >= 0 && uniform < 1,
                 fmt::format("{} logits, {}", logits.size(), uniform));
  const auto broken =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
  if (broken != logits.end()) {
    throw Error(ErrorKind::cancelled,
                {"cannot choose the next token", fmt::format("token {}", broken - logits.begin()),
                 "its logit is not a number", "use weights of before the training diverged"});
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto more_likely = [&](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), more_likely);
  std::sort(order.begin(), order.end(), more_likely);
  if (options.top_k > 0) order.resize(std::min<size_t>(order.size(), options.top_k));
  std::vector<double> weights;
  const double most = logit(order.front());
  for (const int32_t token : order)
    weights.push_back(logit(token) == logit(order.front())
                          ? 1.0
                          : std::exp((static_cast<double>(logit(token)) - most) / options.temperature));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * all)) kept += weights[count++];
  double left = uniform * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    if (left < weights[i]) return order[i];
    left -= weights[i];
  }
  return order[count - 1];
}

}  // namespace terrace
