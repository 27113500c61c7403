#include <terrace/runtime/observe/log/log_lines.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include <terrace/base/text/json_writer.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

constexpr auto kResources =
    std::to_array({Resource::processor, Resource::host_to_device, Resource::device_to_host,
                   Resource::disk_reads, Resource::disk_writes, Resource::device_compute});

std::string key_in_log(const CounterEntry& counter) {
  const char* unit = counter.unit == CounterUnit::bytes ? "_bytes"
                     : counter.unit == CounterUnit::ns  ? "_seconds"
                                                        : "";
  return std::string(counter.key) + unit;
}

// One text of each value of the configuration, where it has one.
void write_texts(JsonWriter& json, std::string_view key, const std::vector<ResolvedValue>& values,
                 std::string ResolvedValue::*text) {
  json.begin_object(key);
  for (const ResolvedValue& value : values)
    if (!(value.*text).empty()) json.member(value.key, value.*text);
  json.end();
}

}  // namespace

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string start_line(const RunHeader& header) {
  JsonWriter json;
  write_fields(json.begin_object().member("event", "start"), header);
  write_texts(json, "origins", header.configuration, &ResolvedValue::origin);
  write_texts(json, "notes", header.configuration, &ResolvedValue::note);
  return json.end().take();
}

std::optional<std::string> read_header(const JsonNode& line, RunHeader& header) {
  if (std::optional<std::string> wrong = read_fields(line, header)) return wrong;
  const auto read_texts = [&](std::string_view key, std::string ResolvedValue::*text) {
    const JsonNode* const texts = line.find(key);
    for (ResolvedValue& value : header.configuration) {
      const JsonNode* const found = texts != nullptr ? texts->find(value.key) : nullptr;
      if (found != nullptr) value.*text = found->text;
    }
  };
  read_texts("origins", &ResolvedValue::origin);
  read_texts("notes", &ResolvedValue::note);
  return std::nullopt;
}

std::string warning_line(const LoggedLine& said) {
  return json_object({{"event", "warning"},
                      {"step", said.completed_steps},
                      {"level", said.level == LogLevel::error ? "error" : "warning"},
                      {"text", said.text}});
}

std::string end_line(const RunEnd& end) {
  JsonWriter json;
  json.begin_object().member("event", end.failed ? "failed" : "end").member("step", end.step);
  if (end.failed) {
    json.members({{"failure", end.stopped_by}, {"survives", end.survives}});
  } else {
    json.member("stopped_by", json_text_or_null(end.stopped_by));
  }
  if (!end.told.empty()) json.member("text", end.told);
  return json.end().take();
}

std::string log_line(std::string_view event, uint64_t step, std::string_view key, const JsonValue& value) {
  return json_object({{"event", event}, {"step", step}, {key, value}});
}

void write_counters(JsonWriter& json, const OffloadCounters& counters) {
  write_time_parts(json, "time_ns", counters.time);
  json.member("bound_by", key_of(resource_use(counters).binding));
  for (const CounterEntry& counter : kCounters) {
    if (counter.key.empty()) continue;
    const uint64_t value = counters.*counter.value;
    const bool is_time = counter.unit == CounterUnit::ns;
    json.member(key_in_log(counter), is_time ? JsonValue(seconds(value)) : value);
  }
}

bool read_counters(const JsonNode& object, OffloadCounters& counters) {
  for (const CounterEntry& counter : kCounters) {
    const JsonNode* const node = counter.key.empty() ? nullptr : object.find(key_in_log(counter));
    if (node == nullptr) continue;
    uint64_t& value = counters.*counter.value;
    const bool is_read =
        counter.unit == CounterUnit::ns ? read_seconds(*node, value) : read_json(*node, value);
    if (!is_read) return false;
  }
  const JsonNode* const parts = object.find("time_ns");
  if (parts == nullptr) return true;
  for (const TimeCause cause : kTimeCauses) {
    const JsonNode* const part = parts->find(key_of(cause));
    if (part != nullptr && !read_json(*part, counters.time[cause])) return false;
  }
  return true;
}

void write_time_parts(JsonWriter& json, std::string_view key, const TimeParts& parts) {
  json.begin_object(key);
  for (const TimeCause cause : kTimeCauses) json.member(key_of(cause), parts[cause]);
  json.end();
}

void write_json(JsonWriter& json, const std::vector<ResolvedValue>& values) {
  json.begin_object();
  for (const ResolvedValue& value : values) json.member(value.key, json_raw(value.value));
  json.end();
}

bool read_json(const JsonNode& node, std::vector<ResolvedValue>& values) {
  values.clear();
  for (const JsonMember& member : node.members)
    values.push_back({member.key, json_text(member.value), "", ""});
  return node.is(JsonNode::Kind::object);
}

void write_json(JsonWriter& json, const ReportFact& fact) {
  json.list({fact.name, fact.text});
}

bool read_json(const JsonNode& node, ReportFact& fact) {
  return node.items.size() == 2 && read_json(node.items[0], fact.name) && read_json(node.items[1], fact.text);
}

void write_json(JsonWriter& json, UpdateMode mode) {
  json.value(name_of(mode));
}

bool read_json(const JsonNode& node, UpdateMode& mode) {
  const std::optional<UpdateMode> known = update_mode_from_name(node.text);
  if (known) mode = *known;
  return known.has_value();
}

void write_json(JsonWriter& json, Resource resource) {
  json.value(key_of(resource));
}

bool read_json(const JsonNode& node, Resource& resource) {
  for (const Resource known : kResources) {
    if (key_of(known) != node.text) continue;
    resource = known;
    return true;
  }
  return false;
}

void write_json(JsonWriter& json, const OffloadCounters& counters) {
  json.begin_object();
  write_counters(json, counters);
  json.end();
}

bool read_json(const JsonNode& node, OffloadCounters& counters) {
  return read_counters(node, counters);
}

}  // namespace terrace
