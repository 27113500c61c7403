#include <terrace/runtime/config/run_settings.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr const char* kBatchSetting = "train_batch_size";
constexpr const char* kMicroBatchSetting = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulationSetting = "gradient_accumulation_steps";
constexpr const char* kGroupSetting = "terrace.gradient_group";
constexpr const char* kWeightsSetting = "zero_optimization.zero_quantized_weights";
constexpr const char* kGradientsSetting = "zero_optimization.zero_quantized_gradients";
constexpr const char* kComputeSetting = "terrace.compute";

// A key, or with a point at its end a section. The accumulation of a rank is not one: it follows from the
// number of ranks, which changes no number of a run.
constexpr std::array<std::string_view, 9> kShaping = {kMicroBatchSetting,
                                                      kBatchSetting,
                                                      "gradient_clipping",
                                                      "optimizer.",
                                                      "scheduler.",
                                                      "bf16.",
                                                      "fp16.",
                                                      "data_types.",
                                                      "terrace.parameter_groups"};

bool shapes_the_run(std::string_view key) {
  return std::any_of(kShaping.begin(), kShaping.end(), [&](std::string_view shaping) {
    return shaping.ends_with('.') ? key.starts_with(shaping) : key == shaping;
  });
}

std::string value_of(const std::map<std::string, std::string>& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "not set" : found->second;
}

// Checkpoints of runs before there were ranks have the accumulation in place of the batch.
void derive_batch(std::map<std::string, std::string>& saved) {
  const auto accumulation = saved.find(kAccumulationSetting), micro = saved.find(kMicroBatchSetting);
  if (accumulation == saved.end()) return;
  if (micro != saved.end() && !saved.contains(kBatchSetting))
    saved[kBatchSetting] = std::to_string(std::strtoull(accumulation->second.c_str(), nullptr, 10) *
                                          std::strtoull(micro->second.c_str(), nullptr, 10));
  saved.erase(kAccumulationSetting);
}

// The type of products, which follows from several keys. Where it depends on the device that the run finds,
// it is what its key says.
std::string_view products_of(const TrainConfig& config) {
  const TerraceConfig& own = config.terrace;
  const std::string_view processor = name_of(processor_products(config));
  const std::string_view gpu = name_of(own.compute == ComputeType::fp32 ? DataType::fp32 : config.precision);
  if (own.device == DeviceChoice::simulated || processor == gpu) return processor;
  return own.device == DeviceChoice::cuda ? gpu : name_of(own.compute);
}

// Checkpoints from before there was the key say nothing of products; those of a processor were of fp32.
void derive_products(std::map<std::string, std::string>& saved,
                     const std::map<std::string, std::string>& now) {
  const auto found = now.find(kComputeSetting);
  if (found != now.end() &&
      (found->second == name_of(ComputeType::fp32) || found->second == name_of(ComputeType::automatic)))
    saved.insert(*found);
}

}  // namespace

std::map<std::string, std::string> settings_of(const TrainConfig& config, uint64_t steps) {
  std::map<std::string, std::string> settings{{"steps", std::to_string(steps)}};
  for (const ResolvedValue& value : config.resolved) {
    if (shapes_the_run(value.key)) settings[value.key] = value.value;
  }
  if (const uint32_t group = config.batch.rounds().group; group > 1)
    settings[kGroupSetting] = std::to_string(group);
  if (config.parameter_bits > 0) settings[kWeightsSetting] = fmt::format("{} bits", config.parameter_bits);
  if (const uint32_t bits = config.batch.gradient_bits; bits > 0)
    settings[kGradientsSetting] = fmt::format("{} bits", bits);
  settings[kComputeSetting] = products_of(config);
  return settings;
}

std::vector<std::string> changed_settings(std::map<std::string, std::string> saved,
                                          const std::map<std::string, std::string>& now) {
  std::vector<std::string> lines;
  if (saved.empty()) return lines;
  derive_batch(saved);
  derive_products(saved, now);
  std::map<std::string, std::string> all = saved;
  all.insert(now.begin(), now.end());
  for (const auto& [key, ignored] : all) {
    const std::string before = value_of(saved, key);
    const std::string after = value_of(now, key);
    if (before != after)
      lines.push_back(
          fmt::format("{} differs from the checkpoint's run: {} now, {} there", key, after, before));
  }
  return lines;
}

uint32_t gradient_group_of(const std::map<std::string, std::string>& settings) {
  const auto found = settings.find(kGroupSetting);
  if (found == settings.end()) return 1;
  return static_cast<uint32_t>(std::strtoul(found->second.c_str(), nullptr, 10));
}

void keep_gradient_group(const std::map<std::string, std::string>& saved, const std::string& where,
                         BatchConfig& batch) {
  const uint32_t group = gradient_group_of(saved);
  if (batch.gradient_group.value_or(group) != group) {
    throw Error(ErrorKind::config,
                {"cannot go on from", where,
                 fmt::format("{} is {}, and the run there has {}: its gradients are summed in another order",
                             kGroupSetting, *batch.gradient_group, group),
                 fmt::format("leave {} out", kGroupSetting)});
  }
  batch.gradient_group = group;
}

}  // namespace terrace
