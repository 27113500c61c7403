#include <terrace/capi/optimizer.h>

#include <fmt/format.h>
#include <terrace_run.h>

#include <string>
#include <utility>

#include <terrace/base/text/json_writer.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/structs.h>
#include <terrace/optimizer_cpu/optimizer_table.h>

namespace terrace::c {

OptimizerKind optimizer_kind(uint32_t kind) {
  return kOptimizers[kind].kind;
}

namespace {

OptimizerSettings group_of(const terrace_optimizer& given, uint32_t number, const Subject& action) {
  require_enum(given.kind, kOptimizers.size(), action,
               fmt::format("terrace_optimizer.kind of group {}", number));
  require_zero(given.reserved, action, fmt::format("terrace_optimizer.reserved of group {}", number));
  const auto or_default = [&](double value, double by_default) {
    return value == 0 && given.exact == 0 ? by_default : value;
  };
  const OptimizerRow& row = kOptimizers[given.kind];
  OptimizerSettings settings;
  settings.kind = row.kind;
  settings.lr = given.lr;
  settings.beta1 = or_default(given.beta1, 0.9);
  settings.beta2 = or_default(given.beta2, row.beta2);
  settings.eps = or_default(given.eps, row.eps);
  settings.weight_decay = given.weight_decay;
  settings.adamw_mode = row.decays_apart || row.kind != OptimizerKind::adam;
  settings.bias_correction = given.no_bias_correction == 0;
  settings.momentum = given.momentum;
  settings.dampening = given.dampening;
  settings.nesterov = given.nesterov != 0;
  MuonSettings& muon = settings.muon;
  muon.matches_adamw = given.matches_adamw != 0;
  if (given.iterations != 0 || given.exact != 0) muon.iterations = given.iterations;
  const bool has_none = given.coefficient_a == 0 && given.coefficient_b == 0 && given.coefficient_c == 0;
  if (!has_none || given.exact != 0)
    muon.a = given.coefficient_a, muon.b = given.coefficient_b, muon.c = given.coefficient_c;
  return settings;
}

}  // namespace

OwnedSettings read_settings(const terrace_update_settings* given, bool tensors_count_steps,
                            const Subject& action) {
  const terrace_update_settings known = taken(given, action, "settings");
  const auto groups = taken_list(known.groups, known.group_count, action, Option::update_groups);
  OwnedSettings owned;
  for (uint32_t g = 0; g < groups.size(); ++g) owned.groups.push_back(group_of(groups[g], g, action));
  owned.settings.groups = owned.groups;
  owned.settings.step = known.step == 0 && tensors_count_steps ? 1 : known.step;
  owned.settings.clip_norm = known.clip_norm;
  owned.settings.loss_scale = known.loss_scale == 0 ? 1 : known.loss_scale;
  return owned;
}

namespace {

std::string optimizers_json() {
  JsonWriter json;
  json.begin_list(JsonLayout::lines);
  for (const OptimizerRow& row : kOptimizers) {
    json.begin_object().member("word", row.word);
    json.begin_list("moments");
    for (const std::string_view moment : row.moments) {
      if (!moment.empty()) json.value(moment);
    }
    json.end()
        .members({{"counts_steps", row.counts_steps},
                  {"has_betas", row.has_betas},
                  {"has_eps", row.has_eps},
                  {"has_momentum", row.has_momentum},
                  {"has_bias_correction", row.has_bias_correction},
                  {"lr", row.lr},
                  {"beta2", row.beta2},
                  {"eps", row.eps}})
        .end();
  }
  return json.end().take();
}

}  // namespace
}  // namespace terrace::c

terrace_error* terrace_optimizers(const char** json) {
  return terrace::c::answer([&] {
    terrace::c::require_pointer(json, "cannot list the optimizers", "json");
    static const std::string text = terrace::c::optimizers_json();
    *json = text.c_str();
  });
}
