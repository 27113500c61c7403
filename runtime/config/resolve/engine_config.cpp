#include <terrace/runtime/config/engine_config.h>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_text.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

// The words of a store.
std::string_view optimizer_kind(const OptimizerConfig& optimizer) {
  const bool is_adam = row_of(optimizer.type).has_bias_correction;
  const OptimizerType adam = optimizer.decoupled_weight_decay ? OptimizerType::adamw : OptimizerType::adam;
  return row_of(is_adam ? adam : optimizer.type).word;
}

void write_store(JsonWriter& json, const TrainConfig& config) {
  const PlacementConfig& placement = config.placement;
  const auto& folders =
      placement.parameters == Placement::nvme ? placement.parameter_paths : placement.state_paths;
  json.begin_object("store").members(
      {{"optimizer", optimizer_kind(config.optimizer)},
       {"precision", name_of(config.precision)},
       {"accumulation_type", name_of(config.grad_accum_type.value_or(DataType::fp32))},
       {"moment_type", name_of(config.optimizer.moment_type)},
       {"most_chunk_elements", config.max_chunk_elements},
       {"page_locked", placement.pin_parameters && placement.pin_states}});
  json.list("nvme_paths", folders, [&](const std::filesystem::path& path) { json.value(path.string()); })
      .end();
}

std::string json_of(const TrainConfig& config, const ConfigEntries& entries,
                    const std::vector<std::string>& without_effect) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).begin_object("values", JsonLayout::lines);
  for (const ResolvedValue& value : config.resolved) json.member(value.key, json_raw(value.value));
  json.end().begin_object("written", JsonLayout::lines);
  for (const auto& [path, entry] : entries.all()) json.member(path, entry.written_key);
  json.end().begin_list("auto");
  for (const auto& [path, entry] : entries.all()) {
    if (entry.is_auto) json.value(path);
  }
  json.end().begin_list("sections");
  for (const auto& [path, origin] : entries.sections()) json.value(path);
  json.end();
  json.list("without_effect", without_effect);
  json.list("old_names", entries.old_names());
  json.list("warnings", config.warnings);
  write_store(json, config);
  return json.end().take();
}

JsonNode document_of(std::string_view text, std::string_view name) {
  try {
    return parse_json(text, name);
  } catch (const NotJson& error) {
    throw Error(ErrorKind::config,
                {"cannot read the configuration", error.origin().empty() ? "configuration" : error.origin(),
                 error.reason(), error.parts().advice});
  }
}

}  // namespace

std::string config_document(std::string_view text, std::string_view name) {
  return json_text(document_of(text, name));
}

EngineConfig parse_engine_config(std::string_view text, std::string_view name,
                                 const EngineConfigOptions& options) {
  const JsonNode document = document_of(text, name);
  ConfigProblems problems(ConfigUser::engine);
  const ConfigEntries entries(document, {}, ConfigUser::engine, problems);
  problems.throw_if_any();
  Resolver resolver(entries, problems);
  EngineConfig result{resolver.resolve_for_engine(options), ""};
  problems.throw_if_any();
  take_paths_of(options.seat, result.config.terrace.nvme_share, result.config.placement);
  result.json = json_of(result.config, entries, resolver.lines_without_effect());
  return result;
}

}  // namespace terrace
