// How a configuration is shown: --print-config, and docs/config.md.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/runtime/config/json_document.h>
#include <terrace/runtime/config/schema.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

Terrace reads the DeepSpeed JSON files that people have. This page lists every key it knows; it is written by the
program from the same table that the parser uses.

- `//` and `/* */` comments, trailing commas and whole numbers such as `5e8` are accepted; keys that begin with `_` are
  comments too. `null` is as good as leaving the key out.
- A key that is not listed here is an error with its line and column, and with a suggestion where one is near. So are
  duplicate keys, values of the wrong type, and keys that contradict each other; both are named.
- `"auto"` is accepted for every value and stands for the default, unless the table says otherwise.
- Files that give no batch size rely on their trainer for it; here they get one sequence at a time.
- Known keys that have no effect here are accepted and listed in one warning.
- `--print-config` shows every value in force and where it came from: the line of the file, a flag, `auto` or a default.

Effects: **honoured** keys do here what they do in DeepSpeed, or what the note says; **mapped** keys stand for another
key; keys **without effect** are accepted; **refused** keys are an error unless they have a value that changes nothing,
which the note or the column "value" names.
)";

// Keeps a cell of a table one cell.
std::string cell(std::string_view text) {
  std::string safe;
  for (char c : text) safe += c == '|' ? std::string("\\|") : std::string(1, c);
  return safe;
}

std::string accepted(const SchemaKey& row) {
  const std::string_view allowed = row.limits.allowed;
  const bool has_subkeys = row.type == ValueType::section || row.type == ValueType::open_section;
  if (row.effect != KeyEffect::refused) return has_subkeys ? "a section" : expected_values(row);
  if (allowed.empty()) return "not accepted";
  if (has_subkeys) return "only with nothing enabled";
  std::string text;
  for (char c : allowed) text += c == '|' ? std::string(" or ") : std::string(1, c);
  return "only " + text;
}

std::string section_heading(std::string_view section) {
  return section.empty() ? "## Top level\n" : fmt::format("## {}\n", section);
}

}  // namespace

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
  return table;
}

std::string config_json(const TrainConfig& config) {
  std::string lines;
  for (const ResolvedValue& line : config.resolved) {
    lines += fmt::format("{}  {{\"key\": {}, \"value\": {}, \"origin\": {}}}", lines.empty() ? "" : ",\n",
                         json_quoted(line.key), line.value, json_quoted(line.origin));
  }
  return "[\n" + lines + "\n]\n";
}

std::string config_reference_markdown() {
  std::string page(kIntroduction);
  std::vector<std::string_view> sections;
  for (const SchemaKey& row : schema()) {
    if (std::find(sections.begin(), sections.end(), row.section) == sections.end())
      sections.push_back(row.section);
  }
  for (const std::string_view section : sections) {
    page += "\n" + section_heading(section) +
            "\n| key | value | default | effect | note |\n|---|---|---|---|---|\n";
    for (const SchemaKey& row : schema()) {
      if (row.section != section) continue;
      page += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.key, cell(accepted(row)),
                          cell(row.default_text), name_of(row.effect), cell(row.note));
    }
  }
  return page;
}

}  // namespace terrace
