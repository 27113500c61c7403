#include <terrace/reference/model/transformer/internal/adapter_targets.h>

#include <fmt/format.h>

#include <cmath>

#include <terrace/base/error.h>
#include <terrace/runtime/config/name_pattern.h>

namespace terrace::decoder {
namespace {

constexpr uint32_t kLargestRank = 65536;

}  // namespace

AdapterTargets::AdapterTargets(const ModelConfig& config, const ModelOptions& options) {
  if (!options.lora) return;
  const LoraOptions& lora = *options.lora;
  if (lora.rank == 0 || lora.rank > kLargestRank || !std::isfinite(lora.alpha) || lora.alpha == 0) {
    throw Error(ErrorKind::config,
                {"cannot make adapters", fmt::format("rank {}, alpha {}", lora.rank, lora.alpha),
                 fmt::format("a rank is 1 to {}, and an alpha of 0 changes nothing", kLargestRank),
                 "usual are a rank of 8 to 64 and an alpha of once or twice the rank"});
  }
  patterns_ = lora.targets;
  if (patterns_.empty()) {
    patterns_ = default_adapter_targets(config.family);
  }
  fits_.resize(patterns_.size());
}

bool AdapterTargets::wants(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  bool wanted = false;
  for (size_t p = 0; p < patterns_.size(); ++p) {
    if (!matches_pattern(patterns_[p], module) && !matches_pattern(patterns_[p], last)) continue;
    wanted = fits_[p] = true;
  }
  return wanted;
}

void AdapterTargets::check(std::string_view example) const {
  for (size_t p = 0; p < patterns_.size(); ++p) {
    if (fits_[p]) continue;
    throw Error(
        ErrorKind::config,
        {"cannot put adapters beside", patterns_[p], "no linear layer of the model has such a name",
         fmt::format("names look like \"{}\"; the last part of one is enough, and * stands for anything",
                     example)});
  }
}

}  // namespace terrace::decoder
