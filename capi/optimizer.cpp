#include <terrace/capi/optimizer.h>

#include <fmt/format.h>

#include <string>
#include <utility>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/structs.h>

namespace terrace::c {

OptimizerKind optimizer_kind(uint32_t kind) {
  switch (kind) {
    case TERRACE_ADAGRAD:
      return OptimizerKind::adagrad;
    case TERRACE_LION:
      return OptimizerKind::lion;
    case TERRACE_SGD:
      return OptimizerKind::sgd;
    default:
      return OptimizerKind::adam;
  }
}

namespace {

OptimizerSettings group_of(const terrace_optimizer& given, uint32_t number, std::string_view action) {
  require_enum(given.kind, 5, action, fmt::format("terrace_optimizer.kind of group {}", number));
  require_zero(given.reserved, action, fmt::format("terrace_optimizer.reserved of group {}", number));
  const auto or_default = [&](double value, double by_default) {
    return value == 0 && given.exact == 0 ? by_default : value;
  };
  OptimizerSettings settings;
  settings.kind = optimizer_kind(given.kind);
  settings.lr = given.lr;
  settings.beta1 = or_default(given.beta1, 0.9);
  settings.beta2 = or_default(given.beta2, given.kind == TERRACE_LION ? 0.99 : 0.999);
  settings.eps = or_default(given.eps, given.kind == TERRACE_ADAGRAD ? 1e-10 : 1e-8);
  settings.weight_decay = given.weight_decay;
  settings.adamw_mode = given.kind != TERRACE_ADAM;
  settings.bias_correction = given.no_bias_correction == 0;
  settings.momentum = given.momentum;
  settings.dampening = given.dampening;
  settings.nesterov = given.nesterov != 0;
  return settings;
}

}  // namespace

OwnedSettings read_settings(const terrace_update_settings* given, bool tensors_count_steps,
                            std::string_view action) {
  const terrace_update_settings known = taken(given, action, "settings");
  const auto groups = taken_list(known.groups, known.group_count, action, "terrace_update_settings.groups");
  OwnedSettings owned;
  for (uint32_t g = 0; g < groups.size(); ++g) owned.groups.push_back(group_of(groups[g], g, action));
  owned.settings.groups = owned.groups;
  owned.settings.step = known.step == 0 && tensors_count_steps ? 1 : known.step;
  owned.settings.clip_norm = known.clip_norm;
  owned.settings.loss_scale = known.loss_scale == 0 ? 1 : known.loss_scale;
  return owned;
}

}  // namespace terrace::c
