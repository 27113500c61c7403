#include <fmt/format.h>

#include <utility>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>
#include <terrace/runtime/config/resolve/internal/without_effect.h>

namespace terrace {

std::string joined_path(std::string_view section, std::string_view key) {
  return fmt::format("{}.{}", section, key);
}

std::string list_text(const std::vector<double>& values) {
  return values.size() == 1 ? fmt::format("{}", values[0]) : fmt::format("[{}]", fmt::join(values, ", "));
}

TrainConfig Resolver::resolve() {
  config_.batch.ranks = small("terrace.ranks", 1);
  if (const auto group = optional_integer("terrace.gradient_group"))
    config_.batch.gradient_group = static_cast<uint32_t>(*group);
  resolve_batch();
  resolve_optimizer();
  resolve_groups();
  resolve_scheduler();
  resolve_precision();
  resolve_activations();
  resolve_order();
  resolve_adapters();
  resolve_monitor();
  config_.gradient_clipping = number("gradient_clipping", 1.0);
  config_.steps_per_print = optional_integer("steps_per_print");
  resolve_zero();
  resolve_update_ratio();
  config_.max_prefetch_elements = optional_integer("zero_optimization.stage3_prefetch_bucket_size");
  config_.gather_16bit_weights_on_save =
      boolean("zero_optimization.stage3_gather_16bit_weights_on_model_save", false);
  resolve_aio();
  resolve_gpu();
  resolve_terrace();
  resolve_file_reads();
  resolve_durability();
  resolve_ranks();
  check_activation_offload();
  warn_without_effect();
  order_resolved();
  return std::move(config_);
}

const ConfigEntry* Resolver::given(std::string_view path) const {
  const ConfigEntry* entry = entries_.find(path);
  return entry != nullptr && !entry->is_auto ? entry : nullptr;
}

bool Resolver::is_auto(std::string_view path) const {
  const ConfigEntry* entry = entries_.find(path);
  return entry != nullptr && entry->is_auto;
}

void Resolver::record(std::string_view path, std::string value, std::string_view otherwise) {
  const ConfigEntry* entry = entries_.find(path);
  std::string origin(otherwise);
  if (entry != nullptr && (!entry->is_auto || otherwise == "default")) origin = entry->origin();
  recorded_[std::string(path)] = {std::string(path), std::move(value), std::move(origin), ""};
}

bool Resolver::boolean(std::string_view path, bool by_default, bool when_auto) {
  const ConfigEntry* entry = entries_.find(path);
  const bool value = entry == nullptr ? by_default : entry->is_auto ? when_auto : entry->value.boolean;
  record(path, value ? "true" : "false");
  return value;
}

double Resolver::number(std::string_view path, double by_default) {
  const ConfigEntry* entry = given(path);
  const double value = entry != nullptr ? entry->value.number : by_default;
  record(path, fmt::format("{}", value));
  return value;
}

uint64_t Resolver::integer(std::string_view path, uint64_t by_default) {
  const ConfigEntry* entry = given(path);
  const uint64_t value = entry != nullptr ? whole_number(entry->value) : by_default;
  record(path, fmt::format("{}", value));
  return value;
}

uint32_t Resolver::small(std::string_view path, uint32_t by_default) {
  return static_cast<uint32_t>(integer(path, by_default));
}

std::optional<uint64_t> Resolver::optional_integer(std::string_view path) {
  if (given(path) != nullptr) return integer(path, 0);
  record(path, "null");
  return std::nullopt;
}

std::string Resolver::text(std::string_view path, std::string_view by_default) {
  const ConfigEntry* entry = given(path);
  std::string value = entry != nullptr ? entry->value.text : std::string(by_default);
  record(path, value.empty() ? "null" : json_quoted(value));
  return value;
}

std::vector<std::string> Resolver::texts(std::string_view path) {
  std::vector<std::string> values;
  const ConfigEntry* entry = given(path);
  if (entry != nullptr) {
    for (const JsonNode& item : entry->value.items) values.push_back(item.text);
  }
  record(path, entry != nullptr ? json_text(entry->value) : "null");
  return values;
}

std::vector<double> Resolver::numbers(std::string_view path, std::vector<double> by_default) {
  const ConfigEntry* entry = given(path);
  if (entry != nullptr && entry->value.is(JsonNode::Kind::list)) {
    by_default.clear();
    for (const JsonNode& item : entry->value.items) by_default.push_back(item.number);
  } else if (entry != nullptr) {
    by_default = {entry->value.number};
  }
  record(path, list_text(by_default));
  return by_default;
}

void Resolver::warn_without_effect() {
  WithoutEffect list;
  for (const IdleKey& key : entries_.without_effect()) {
    key.warning.empty() ? list.add(key.key, key.reason) : config_.warnings.push_back(key.warning);
  }
  for (const IdleKey& key : idle_) list.add(key.key, key.reason);
  if (!list.empty()) config_.warnings.push_back(list.text());
}

void Resolver::order_resolved() {
  for (const SchemaKey& row : schema()) {
    const auto found = recorded_.find(row.path());
    if (found != recorded_.end()) config_.resolved.push_back(found->second);
  }
}

}  // namespace terrace
