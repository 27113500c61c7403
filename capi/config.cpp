// terrace_run.h: the configuration of a run, its learning rates and its loss scale.
#include <terrace_run.h>

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/structs.h>
#include <terrace/runtime/config/engine_config.h>
#include <terrace/runtime/config/loss_scaler.h>
#include <terrace/runtime/config/lr_schedule.h>
#include <terrace/runtime/config/schema/engine_keys.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace

struct terrace_config {
  EngineConfig resolved;
  LrSchedule schedule{resolved.config.schedule};
};

struct terrace_loss_scale {
  std::optional<LossScaler> scaler;  // of fp16
  LossScaleState now() const { return scaler ? scaler->now() : LossScaleState(); }
};

namespace {

constexpr uint32_t kMostRanks = 16384;
constexpr const char* kScale = "cannot scale the loss";
constexpr const char* kRead = "cannot read a configuration";
constexpr const char* kAsk = "cannot ask a configuration";

EngineConfig resolved_from(const terrace_config_options& given) {
  EngineConfigOptions options{given.brings_optimizer != 0, given.brings_schedule != 0, std::nullopt};
  c::require_zero(given.reserved, kRead, "terrace_config_options.reserved");
  c::require_at_most(given.ranks, kMostRanks, kRead, "terrace_config_options.ranks");
  if (given.ranks != 0) options.ranks = given.ranks;
  options.seat = given.met != nullptr ? given.met->seat : seat_of(0, {});
  if (given.total_steps != 0) options.total_step_count = given.total_steps;
  if (given.text == nullptr) c::require_pointer(given.path, kRead, "terrace_config_options.path");
  const std::string name = given.path != nullptr ? given.path : "";
  const std::string text = given.text != nullptr ? given.text : config_file(name);
  if (given.document_only != 0) return {TrainConfig(), config_document(text, name)};
  return parse_engine_config(text, name, options);
}

}  // namespace

terrace_error* terrace_config_read(const terrace_config_options* options, terrace_config** config) {
  return c::answer([&] {
    c::require_pointer(config, kRead, "config");
    const terrace_config_options given = c::taken(options, kRead, "options");
    *config = std::unique_ptr<terrace_config>(new terrace_config{resolved_from(given)}).release();
  });
}

terrace_error* terrace_config_json(terrace_config* config, const char** json) {
  return c::answer([&] {
    c::require_pointer(config, kAsk, "config");
    c::require_pointer(json, kAsk, "json");
    *json = config->resolved.json.c_str();
  });
}

terrace_error* terrace_config_scheduled(terrace_config* config, uint64_t update, uint32_t group,
                                        double base_lr, terrace_scheduled* scheduled) {
  return c::answer([&] {
    c::require_pointer(config, kAsk, "config");
    c::require_result(scheduled, kAsk, "scheduled");
    const uint32_t groups = config->schedule.group_count();
    if (groups != 0 && group >= groups)
      c::refuse(ErrorKind::config, "cannot schedule a learning rate",
                fmt::format("parameter group {}", group),
                fmt::format("the scheduler has rates for {} groups", groups),
                "give its lists a rate for each group, or one for all");
    const ScheduledValues values = config->schedule.at(update, group, base_lr);
    c::give(scheduled, terrace_scheduled{0, values.beta1 ? 1u : 0u, values.lr, values.beta1.value_or(0),
                                         values.beta2.value_or(0)});
  });
}

void terrace_config_free(terrace_config* config) {
  delete config;
}

terrace_error* terrace_config_keys(const char** json) {
  return c::answer([&] {
    c::require_pointer(json, "cannot list the keys of a configuration", "json");
    static const std::string keys = engine_keys_json();
    *json = keys.c_str();
  });
}

terrace_error* terrace_loss_scale_create(terrace_config* config, terrace_loss_scale** scale) {
  return c::answer([&] {
    c::require_pointer(config, kScale, "config");
    c::require_pointer(scale, kScale, "scale");
    auto made = std::make_unique<terrace_loss_scale>();
    const TrainConfig& resolved = config->resolved.config;
    if (resolved.precision == DataType::fp16) made->scaler.emplace(resolved.fp16);
    *scale = made.release();
  });
}

terrace_error* terrace_loss_scale_note(terrace_loss_scale* scale, uint32_t has_overflowed) {
  return c::answer([&] {
    c::require_pointer(scale, kScale, "scale");
    if (scale->scaler) scale->scaler->update(has_overflowed != 0);
  });
}

terrace_error* terrace_loss_scale_get(terrace_loss_scale* scale, terrace_loss_scale_state* state) {
  return c::answer([&] {
    c::require_pointer(scale, kScale, "scale");
    c::require_result(state, kScale, "state");
    const LossScaleState now = scale->now();
    c::give(state, terrace_loss_scale_state{0, now.hysteresis, now.scale, now.good_steps, now.skipped_steps,
                                            now.skipped_in_a_row, 0});
  });
}

terrace_error* terrace_loss_scale_restore(terrace_loss_scale* scale, const terrace_loss_scale_state* state) {
  return c::answer([&] {
    c::require_pointer(scale, kScale, "scale");
    const terrace_loss_scale_state given = c::taken(state, kScale, "state");
    c::require_zero(given.reserved, kScale, "terrace_loss_scale_state.reserved");
    if (scale->scaler)
      scale->scaler->restore(
          {given.scale, given.hysteresis, given.good_steps, given.skipped_steps, given.skipped_in_a_row},
          "terrace_loss_scale_restore");
  });
}

void terrace_loss_scale_free(terrace_loss_scale* scale) {
  delete scale;
}
