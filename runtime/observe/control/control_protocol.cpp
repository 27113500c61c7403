#include <terrace/runtime/observe/control/control_protocol.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/base/units.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/schema/suggestions.h>

namespace terrace {
namespace {

constexpr std::array kCommands = {ControlCommand::status, ControlCommand::set, ControlCommand::save,
                                  ControlCommand::stop};
constexpr std::array kKinds = {ErrorKind::config,  ErrorKind::capacity,  ErrorKind::io,     ErrorKind::device,
                               ErrorKind::corrupt, ErrorKind::cancelled, ErrorKind::misuse, ErrorKind::peer};
constexpr const char* kHostMemory = "host-memory";
constexpr size_t kNear = 2;         // edits
constexpr size_t kShownBytes = 80;  // of what was not understood

std::string_view name_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::config:
      return "config";
    case ErrorKind::capacity:
      return "capacity";
    case ErrorKind::io:
      return "io";
    case ErrorKind::device:
      return "device";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::cancelled:
      return "cancelled";
    case ErrorKind::misuse:
      return "misuse";
    case ErrorKind::peer:
      return "peer";
  }
  return "io";
}

[[noreturn]] void refuse(const std::string& subject, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot carry out the request", subject, reason, advice});
}

std::string text_of(const JsonNode& object, const char* key) {
  const JsonNode* node = object.find(key);
  return node != nullptr && node->is(JsonNode::Kind::text) ? node->text : "";
}

void require_version(const JsonNode& request) {
  const JsonNode* version = request.find("terrace");
  if (version == nullptr)
    refuse("terrace", "it says no version", fmt::format("begin with {{\"terrace\": {}, ", kControlVersion));
  if (!version->is(JsonNode::Kind::number) || version->number != kControlVersion) {
    refuse(fmt::format("terrace {}", json_text(*version)),
           fmt::format("this job speaks version {} of the protocol", kControlVersion),
           "use the program of the job's version");
  }
}

uint64_t bytes_of_value(const JsonNode& request) {
  const JsonNode* value = request.find("value");
  if (value == nullptr) refuse("set host-memory", "it has no value", "give a size: 2GiB");
  return parse_bytes(value->text, kHostMemory);  // of a number, its literal
}

}  // namespace

std::string_view name_of(ControlCommand command) {
  switch (command) {
    case ControlCommand::status:
      return "status";
    case ControlCommand::set:
      return "set";
    case ControlCommand::save:
      return "save";
    case ControlCommand::stop:
      return "stop";
  }
  return "";
}

ControlCommand control_command_from_name(const std::string& name) {
  const auto distance = [&](ControlCommand command) { return edit_distance(name, name_of(command)); };
  const auto best = std::min_element(kCommands.begin(), kCommands.end(),
                                     [&](auto a, auto b) { return distance(a) < distance(b); });
  if (name == name_of(*best)) return *best;
  const std::string near = name.size() > kNear && distance(*best) <= kNear
                               ? fmt::format("did you mean \"{}\"? ", name_of(*best))
                               : "";
  refuse(name.substr(0, kShownBytes), "there is no such command",
         near + "there are status, set, save and stop");
}

void require_settable(const std::string& key) {
  if (key == kHostMemory) return;
  const bool near = key.size() > kNear && edit_distance(key, kHostMemory) <= kNear;
  refuse("set " + key.substr(0, kShownBytes), "there is no such setting",
         near ? "did you mean \"host-memory\"?" : "host-memory is what can be changed while a job runs");
}

ControlRequest parse_control_request(std::string_view line) {
  const JsonNode request = parse_json(line, "request");
  if (!request.is(JsonNode::Kind::object))
    refuse(std::string(line.substr(0, kShownBytes)), "it is not a JSON object", "see docs/control.md");
  require_version(request);
  ControlRequest parsed;
  parsed.command = control_command_from_name(text_of(request, "command"));
  const bool sets = parsed.command == ControlCommand::set;
  for (const JsonMember& member : request.members) {
    const bool known = member.key == "terrace" || member.key == "command" ||
                       (sets && (member.key == "key" || member.key == "value"));
    if (!known) {
      refuse(member.key.substr(0, kShownBytes),
             fmt::format("a request \"{}\" has no such member", name_of(parsed.command)), "leave it out");
    }
  }
  if (!sets) return parsed;
  require_settable(text_of(request, "key"));
  parsed.host_memory_bytes = bytes_of_value(request);
  return parsed;
}

std::string control_request(const ControlRequest& request) {
  JsonWriter json;
  json.begin_object().members({{"terrace", kControlVersion}, {"command", name_of(request.command)}});
  if (request.command == ControlCommand::set)
    json.members({{"key", kHostMemory}, {"value", request.host_memory_bytes}});
  return json.end().take() + "\n";
}

std::string control_answer(std::initializer_list<JsonWriter::Member> members) {
  JsonWriter json;
  json.begin_object().members({{"terrace", kControlVersion}, {"ok", true}}).members(members);
  return json.end().take() + "\n";
}

// `terrace ctl` shows it.
std::string control_refusal(const Error& error) {
  const ErrorParts& parts = error.parts();
  JsonWriter json({.longest_text_bytes = 4096});
  json.begin_object().members({{"terrace", kControlVersion}, {"ok", false}});
  json.begin_object("error").members(
      {{"kind", name_of_kind(error.kind())}, {"what", parts.what_failed.in(Door::program)}});
  json.members({{"subject", parts.subject.in(Door::program)},
                {"reason", parts.reason},
                {"advice", parts.advice.in(Door::program)}});
  return json.end().end().take() + "\n";
}

JsonNode parse_control_answer(std::string_view line) {
  const auto unknown = [&](const std::string& reason) {
    throw Error(ErrorKind::io,
                {"cannot understand the job's answer", std::string(line.substr(0, kShownBytes)), reason,
                 "use the program of the job's version"});
  };
  JsonNode answer;
  try {
    answer = parse_json(line, "answer");
  } catch (const Error& error) {
    unknown(error.what());
  }
  const JsonNode* ok = answer.is(JsonNode::Kind::object) ? answer.find("ok") : nullptr;
  if (ok == nullptr || !ok->is(JsonNode::Kind::boolean)) unknown("it does not say \"ok\"");
  if (ok->boolean) return answer;
  const JsonNode* error = answer.find("error");
  if (error == nullptr || !error->is(JsonNode::Kind::object)) unknown("it names no error");
  const std::string kind = text_of(*error, "kind");
  const auto known = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](ErrorKind other) { return name_of_kind(other) == kind; });
  throw Error(known != kKinds.end() ? *known : ErrorKind::io,
              {text_of(*error, "what"), text_of(*error, "subject"), text_of(*error, "reason"),
               text_of(*error, "advice")});
}

std::optional<std::string> LineBuffer::next() {
  const size_t end = text_.find('\n');
  if (end == std::string::npos || end >= longest_bytes_) return std::nullopt;
  std::string line = text_.substr(0, end);
  text_.erase(0, end + 1);
  return line;
}

bool LineBuffer::too_long() const {
  return std::min(text_.find('\n'), text_.size()) >= longest_bytes_;
}

}  // namespace terrace
