// Which weights are trained, and with which settings: parameter groups, frozen weights, adapters.
#include <fmt/format.h>

#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kGroups = "terrace.parameter_groups";
constexpr std::string_view kQuantizeBase = "terrace.quantize_base";

const ConfigEntry* find_in(const ConfigEntries::EntryMap& entries, std::string_view key) {
  const auto found = entries.find(joined_path(kGroups, key));
  return found == entries.end() || found->second.is_auto ? nullptr : &found->second;
}

std::optional<double> number_in(const ConfigEntries::EntryMap& entries, std::string_view key) {
  const ConfigEntry* entry = find_in(entries, key);
  return entry != nullptr ? std::optional<double>(entry->value.number) : std::nullopt;
}

}  // namespace

void Resolver::resolve_groups() {
  const ConfigEntry* list = given(kGroups);
  record(kGroups, list != nullptr ? json_text(list->value) : "null");
  const auto items = entries_.items(kGroups);
  for (size_t i = 0; i < items.size(); ++i) {
    config_.parameter_groups.push_back(
        resolve_group(items[i], fmt::format("{}[{}]", list->written_key, i), list->value.items[i].origin));
  }
}

GroupConfig Resolver::resolve_group(const ConfigEntries::EntryMap& entries, const std::string& name,
                                    const std::string& origin) {
  GroupConfig group;
  if (const ConfigEntry* match = find_in(entries, "match")) {
    for (const JsonNode& pattern : match->value.items) group.match.push_back(pattern.text);
  } else {
    problems_.add({.origin = origin,
                   .key = name,
                   .text = fmt::format("{} does not say which tensors it is for", name),
                   .advice = "give it \"match\""});
  }
  group.lr = number_in(entries, "lr");
  group.weight_decay = number_in(entries, "weight_decay");
  group.epsilon = number_in(entries, "eps");
  const ConfigEntry* betas = find_in(entries, "betas");
  const auto refuse = [&](std::string_view key, bool fits) {
    const ConfigEntry* entry = find_in(entries, key);
    if (entry == nullptr || fits) return;
    problems_.add(*entry,
                  fmt::format("{} is given, but {} has no {}", entry->written_key, optimizer_named(), key));
  };
  refuse("betas", takes_betas(row_of(config_.optimizer.type)));
  refuse("eps", row_of(config_.optimizer.type).has_eps);
  if (betas != nullptr && betas->value.items.size() != 2) {
    problems_.add(
        *betas, fmt::format("{} has {} values; it needs two", betas->written_key, betas->value.items.size()));
  } else if (betas != nullptr) {
    group.beta1 = betas->value.items[0].number;
    group.beta2 = betas->value.items[1].number;
  }
  return group;
}

void Resolver::resolve_adapters() {
  config_.frozen = texts("terrace.frozen");
  config_.quantize_base = *weight_code_from_name(text(kQuantizeBase, "none"));
  LoraConfig lora;
  const bool wanted = entries_.has_section("terrace.lora") || given("terrace.lora.rank") != nullptr ||
                      given("terrace.lora.alpha") != nullptr || given("terrace.lora.targets") != nullptr;
  if (!wanted) {
    for (const std::string_view key : {"rank", "alpha", "targets"})
      record(joined_path("terrace.lora", key), "null");
    if (config_.quantize_base != WeightCode::none)
      problems_.add(
          *given(kQuantizeBase),
          fmt::format("{} is {}, but without terrace.lora the weights are trained, and codes cannot "
                      "be; set terrace.lora, or leave it out",
                      given(kQuantizeBase)->written_key, name_of(config_.quantize_base)));
    return;
  }
  lora.rank = small("terrace.lora.rank", lora.rank);
  lora.alpha = number("terrace.lora.alpha", lora.alpha);
  lora.targets = texts("terrace.lora.targets");
  config_.lora = std::move(lora);
  if (const ConfigEntry* frozen = given("terrace.frozen")) {
    config_.warnings.push_back(
        fmt::format("{} has no effect: with terrace.lora only the adapters are trained", named(*frozen)));
  }
}

}  // namespace terrace
