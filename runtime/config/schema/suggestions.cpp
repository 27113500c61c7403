#include <terrace/runtime/config/schema/suggestions.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include <terrace/runtime/config/schema/schema.h>

namespace terrace {
namespace {

constexpr size_t kLongestKey = 64;   // that is compared with others
constexpr size_t kMostSections = 3;  // that are named as the home of a key

// Names that other programs and libraries have, and what they are here.
struct OtherName {
  std::string_view name;
  std::string_view path;
};
constexpr auto kOtherNames = std::to_array<OtherName>({
    {"accumulation_steps", "gradient_accumulation_steps"},
    {"batch_size", "train_micro_batch_size_per_gpu"},
    {"bf16_enabled", "bf16.enabled"},
    {"clip_grad_norm", "gradient_clipping"},
    {"epsilon", "optimizer.params.eps"},
    {"fp16_enabled", "fp16.enabled"},
    {"grad_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clip", "gradient_clipping"},
    {"gradient_clip_val", "gradient_clipping"},
    {"learning_rate", "optimizer.params.lr"},
    {"lr_scheduler", "scheduler"},
    {"max_grad_norm", "gradient_clipping"},
    {"max_lr", "scheduler.params.warmup_max_lr"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"mixed_precision", "bf16.enabled"},
    {"num_warmup_steps", "scheduler.params.warmup_num_steps"},
    {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"offload_param_device", "zero_optimization.offload_param.device"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"precision", "bf16.enabled"},
    {"train_micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"zero_stage", "zero_optimization.stage"},
});

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

// Longer names may differ in more places and still be meant; names of one or two letters in none.
size_t tolerance(std::string_view key) {
  return key.size() <= 2 ? 0 : key.size() <= 5 ? 1 : std::min<size_t>(4, 1 + key.size() / 5);
}

struct Nearest {
  const SchemaKey* row = nullptr;
  size_t distance = 0;
};

template <typename Predicate>
Nearest nearest(std::string_view key, size_t furthest, Predicate considered) {
  Nearest best;
  for (const SchemaKey& row : schema()) {
    if (!considered(row)) continue;
    const size_t distance = edit_distance(key, row.key);
    if (distance <= furthest && (best.row == nullptr || distance < best.distance)) best = {&row, distance};
  }
  return best;
}

std::string meant_here(const SchemaKey& row) {
  return fmt::format("did you mean \"{}\"?", row.key);
}

// "it belongs to optimizer.params"; "enabled" belongs to so many sections that it says nothing.
std::string home_of(std::string_view key) {
  std::string sections;
  size_t count = 0;
  for (const SchemaKey& row : schema()) {
    if (row.key != key || row.effect == KeyEffect::refused) continue;
    sections += (sections.empty() ? "" : " or ") + section_name(row.section);
    ++count;
  }
  return count == 0 || count > kMostSections ? "" : "it belongs to " + sections;
}

}  // namespace

std::string suggestion_for(std::string_view section, std::string_view written) {
  if (written.size() > kLongestKey) return "";
  std::string key(written);
  std::replace(key.begin(), key.end(), '-', '_');
  const Nearest here =
      nearest(key, tolerance(key), [&](const SchemaKey& row) { return row.section == section; });
  if (here.row != nullptr && here.distance <= 1) return meant_here(*here.row);
  const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                  [&](const OtherName& name) { return edit_distance(name.name, key) == 0; });
  if (other != kOtherNames.end()) return fmt::format("set {} instead", other->path);
  if (std::string home = home_of(key); !home.empty()) return home;
  if (here.row != nullptr) return meant_here(*here.row);
  // In another section only what is nearly the same.
  const size_t nearly = key.size() <= 5 ? 0 : key.size() / 6;
  const Nearest anywhere = nearest(key, nearly, [](const SchemaKey&) { return true; });
  if (anywhere.row == nullptr || anywhere.distance == 0) return "";  // at home in too many sections
  return fmt::format("did you mean \"{}\" in {}?", anywhere.row->key, section_name(anywhere.row->section));
}

std::string suggestion_among(std::string_view allowed, std::string_view text) {
  if (text.size() <= 3 || text.size() > kLongestKey) return "";  // "gpu" is not nearly "cpu"
  std::string_view best;
  size_t least = tolerance(text) + 1;
  while (true) {
    const size_t bar = allowed.find('|');
    const std::string_view choice = allowed.substr(0, bar);
    const size_t distance = edit_distance(text, choice);
    if (distance < least) least = distance, best = choice;
    if (bar == std::string_view::npos) break;
    allowed.remove_prefix(bar + 1);
  }
  return best.empty() ? "" : fmt::format("did you mean \"{}\"?", best);
}

bool is_nearly_enabled(std::string_view key) {
  constexpr std::string_view enabled = "enabled";
  return key != enabled && key.size() <= kLongestKey && edit_distance(key, enabled) <= 2;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace terrace
