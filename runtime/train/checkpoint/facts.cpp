#include <fmt/format.h>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/train/checkpoint/internal/facts.h>
#include <terrace/runtime/train/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {
namespace {

std::string json_of(const std::map<std::string, uint64_t>& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_quoted(name), value);
  }
  return "{" + text + "}";
}

std::string json_of(const std::map<std::string, std::string>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_quoted(name), json_quoted(value));
  }
  return "{" + text + "}";
}

DataType read_type(Members& members) {
  const std::string type = members.text("parameter_type");
  for (const DataType candidate : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (type == name_of(candidate)) return candidate;
  }
  members.refuse("\"parameter_type\" is none of fp32, bf16 and fp16");
}

}  // namespace

void add_member(std::string& text, std::string_view key, const std::string& json) {
  text += fmt::format("{}  \"{}\": {}", text.size() > 2 ? ",\n" : "", key, json);
}

void add_facts(std::string& text, const CheckpointInfo& info, bool with_architecture) {
  if (info.run_id != 0) add_member(text, "run", json_quoted(hex_text(info.run_id)));
  add_member(text, "step", std::to_string(info.step));
  add_member(text, "model", json_quoted(info.model));
  if (with_architecture) add_member(text, "architecture", json_quoted(info.architecture));
  add_member(text, "parameter_type", json_quoted(name_of(info.type)));
  add_member(text, "tensor_hash", json_quoted(hex_text(info.tensor_hash)));
  add_member(text, "seed", std::to_string(info.seed));
  add_member(text, "data_position", json_of(info.position));
  if (!info.loss_scaler.empty()) add_member(text, "loss_scaler", json_of(info.loss_scaler));
  if (!info.settings.empty()) add_member(text, "settings", json_of(info.settings));
}

CheckpointInfo read_facts(Members& members, bool with_architecture) {
  CheckpointInfo info;
  if (members.has("run")) {
    info.run_id = members.hash("run");
    if (info.run_id == 0) members.refuse("\"run\" is 0");
  }
  info.step = members.whole_number("step");
  info.model = members.text("model");
  if (with_architecture) info.architecture = members.text("architecture");
  info.tensor_hash = members.hash("tensor_hash");
  info.seed = members.whole_number("seed");
  info.type = read_type(members);
  info.position = members.numbers("data_position");
  if (members.has("loss_scaler")) {
    info.loss_scaler = members.numbers("loss_scaler");
    if (info.loss_scaler.empty()) members.refuse("\"loss_scaler\" is empty");
  }
  if (members.has("settings")) {
    info.settings = members.texts("settings");
    if (info.settings.empty()) members.refuse("\"settings\" is empty");
  }
  return info;
}

}  // namespace terrace::checkpoint
