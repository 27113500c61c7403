// How a configuration is shown: --print-config and --explain.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/schema/suggestions.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {
std::string config_table(const TrainConfig& config) {
  size_t key_width = 3;
  size_t value_width = 5;
  for (const ResolvedValue& line : config.resolved) {
    key_width = std::max(key_width, line.key.size());
    value_width = std::max(value_width, line.value.size());
  }
  std::string table = fmt::format("{:<{}}  {:<{}}  {}\n", "key", key_width, "value", value_width, "origin");
  for (const ResolvedValue& line : config.resolved)
    table += fmt::format("{:<{}}  {:<{}}  {}\n", line.key, key_width, line.value, value_width, line.origin);
  for (const ResolvedValue& line : config.resolved) {
    if (!line.note.empty()) table += fmt::format("\n{}: {}\n", line.key, line.note);
  }
  return table;
}

std::string config_json(const TrainConfig& config) {
  JsonWriter json;
  json.begin_list(JsonLayout::lines);
  for (const ResolvedValue& line : config.resolved) {
    json.begin_object().members(
        {{"key", line.key}, {"value", json_raw(line.value)}, {"origin", line.origin}});
    if (!line.note.empty()) json.member("note", line.note);
    json.end();
  }
  return json.end().take() + "\n";
}

std::string config_explanation(const TrainConfig& config, std::string_view key) {
  std::string text;
  for (const SchemaKey& row : schema()) {
    if (row.path() != key && row.key != key) continue;
    const SchemaKey& target = row.limits.stands_for.empty() ? row : *find_path(row.limits.stands_for);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", row.path(), accepted_values(row));
    if (!row.default_text.empty()) text += fmt::format("; default {}", row.default_text);
    text += fmt::format("\n  {}{}: {}\n", name_of(row.effect),
                        row.limits.stands_for.empty() ? "" : " to " + target.path(), row.note);
    for (const ResolvedValue& value : config.resolved) {
      if (value.key != target.path()) continue;
      text += fmt::format("  here: {}, {}\n", value.value, value.origin);
      if (!value.note.empty()) text += fmt::format("  {}\n", value.note);
    }
  }
  if (!text.empty()) return text;
  const size_t dot = key.rfind('.');
  const std::string_view section = dot == std::string_view::npos ? "" : key.substr(0, dot);
  throw Error(ErrorKind::config,
              {"there is no such key", std::string(key), suggestion_for(section, key.substr(dot + 1)),
               "docs/config.md lists every key"});
}

}  // namespace terrace
