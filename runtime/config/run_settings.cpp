#include <terrace/runtime/config/run_settings.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace terrace {
namespace {

// A key, or with a point at its end a section.
constexpr std::array<std::string_view, 9> kShaping = {"train_micro_batch_size_per_gpu",
                                                      "gradient_accumulation_steps",
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

}  // namespace

std::map<std::string, std::string> settings_of(const TrainConfig& config, uint64_t steps) {
  std::map<std::string, std::string> settings{{"steps", std::to_string(steps)}};
  for (const ResolvedValue& value : config.resolved) {
    if (shapes_the_run(value.key)) settings[value.key] = value.value;
  }
  return settings;
}

std::vector<std::string> changed_settings(const std::map<std::string, std::string>& saved,
                                          const std::map<std::string, std::string>& now) {
  std::vector<std::string> lines;
  if (saved.empty()) return lines;
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

}  // namespace terrace
