#include <terrace/runtime/checkpoint/internal/facts.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {
namespace {

template <typename Value>
void write_map(JsonWriter& json, std::string_view key, const std::map<std::string, Value>& values) {
  json.begin_object(key);
  for (const auto& [name, value] : values) json.member(name, value);
  json.end();
}

}  // namespace

void write_facts(JsonWriter& json, const CheckpointInfo& info, bool with_architecture) {
  if (info.run_id != 0) json.member("run", hex_text(info.run_id));
  json.member("step", info.step).member("model", info.model);
  if (with_architecture) json.member("architecture", info.architecture);
  json.member("parameter_type", name_of(info.type)).member("tensor_hash", hex_text(info.tensor_hash));
  json.member("seed", info.seed);
  write_map(json, "data_position", info.position);
  if (!info.loss_scaler.empty()) write_map(json, "loss_scaler", info.loss_scaler);
  if (!info.settings.empty()) write_map(json, "settings", info.settings);
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
  info.type = members.type("parameter_type");
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
