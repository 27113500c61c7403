// The lines of the log of steps (docs/steps_jsonl.md), as values with a form in JSON. Whoever writes a line
// and whoever reads it go by the same table of its members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <terrace/runtime/config/json/json_fields.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/log/log_record.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/run_memory.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

constexpr double seconds(uint64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

// A line about a run or a machine; without a name it continues the line before.
struct ReportFact {
  std::string name;
  std::string text;
  bool is_detail = false;  // a detail of how it is done; the log does not have it
};

// The facts known before the first step: the line "start".
struct RunHeader {
  std::string version;
  std::string model;
  uint64_t parameter_count = 0;         // 0: not known
  uint64_t planned_steps = 0;           // steps of the whole run; 0: not known
  uint64_t resumed_at_step = 0;         // completed steps when this run began
  std::optional<uint64_t> commit_step;  // of the commit that nvme has then
  double unigram_loss = 0;              // of the data; 0: not known
  std::string started_at;               // "2026-01-31T12:00:00Z"
  std::vector<ReportFact> facts;
  std::vector<ReportFact> machine;
  std::vector<ResolvedValue> configuration;  // the origin is empty where it is not known
  std::optional<PlanPrediction> prediction;
};
// Reads a line "start", also of an earlier Terrace. Returns the key that is wrong, if one is.
std::optional<std::string> read_header(const JsonNode& line, RunHeader& header);
// Returns the present time as a header has it.
std::string utc_now();

// Each returns one line without its newline.
std::string start_line(const RunHeader& header);
std::string warning_line(const LoggedLine& said);
std::string end_line(const RunEnd& end);
// A line with one member beside its event and its step.
std::string log_line(std::string_view event, uint64_t step, std::string_view key, const JsonValue& value);

// Writes all counters that have a key, and the time by cause.
void write_counters(JsonWriter& json, const OffloadCounters& counters);
bool read_counters(const JsonNode& object, OffloadCounters& counters);
// Writes a member with nanoseconds by cause, which add up exactly.
void write_time_parts(JsonWriter& json, std::string_view key, const TimeParts& parts);

// --- As JSON ---

// An object of the values alone; start_line() has their origins and notes beside it.
void write_json(JsonWriter& json, const std::vector<ResolvedValue>& values);
bool read_json(const JsonNode& node, std::vector<ResolvedValue>& values);
void write_json(JsonWriter& json, const ReportFact& fact);
bool read_json(const JsonNode& node, ReportFact& fact);
void write_json(JsonWriter& json, UpdateMode mode);
bool read_json(const JsonNode& node, UpdateMode& mode);
void write_json(JsonWriter& json, Resource resource);
bool read_json(const JsonNode& node, Resource& resource);
void write_json(JsonWriter& json, const OffloadCounters& counters);
bool read_json(const JsonNode& node, OffloadCounters& counters);

// What a step has beside its counters.
constexpr auto json_fields(const StepReport&) {
  using R = StepReport;
  return std::tuple(
      json_field("step", &R::step), json_field("loss", &R::loss), json_field("lr", &R::learning_rate),
      json_field("gradient_norm", &R::gradient_norm), later_json_field("skipped", &R::skipped),
      later_json_field("loss_scale", &R::loss_scale), later_json_field("update_mode", &R::update_mode),
      later_json_field("tokens", &R::tokens), json_seconds("seconds", &R::total_ns),
      json_seconds("forward_backward_seconds", &R::forward_backward_ns),
      json_seconds("forward_seconds", &R::forward_ns), json_seconds("update_seconds", &R::update_ns),
      json_seconds("keeping_seconds", &R::keeping_ns));
}
constexpr auto json_fields(const PredictedTier&) {
  using T = PredictedTier;
  return std::tuple(json_field("name", &T::name), json_field("budget_bytes", &T::budget_bytes),
                    json_field("peak_bytes", &T::peak_bytes), later_json_field("uses", &T::uses));
}
constexpr auto json_fields(const PredictedRate&) {
  using R = PredictedRate;
  return std::tuple(json_field("name", &R::name), json_field("value", &R::value),
                    json_field("unit", &R::unit), json_field("origin", &R::origin));
}
constexpr auto json_fields(const PlanPrediction&) {
  using P = PlanPrediction;
  return std::tuple(
      json_field("update_mode", &P::update_mode), json_field("repeats_from_step", &P::repeats_from_step),
      json_field("step", &P::step), json_field("tiers", &P::tiers),
      json_field("commit_write_bytes", &P::commit_write_bytes), json_field("has_times", &P::has_times),
      json_field("forward_seconds", &P::forward_seconds),
      json_field("backward_seconds", &P::backward_seconds), json_field("update_seconds", &P::update_seconds),
      json_field("step_seconds", &P::step_seconds), json_field("binding", &P::binding),
      json_field("rates", &P::rates));
}
constexpr auto json_fields(const RunHeader&) {
  using H = RunHeader;
  return std::tuple(json_field("step", &H::resumed_at_step), json_field("steps", &H::planned_steps),
                    later_json_field("time", &H::started_at), later_json_field("version", &H::version),
                    later_json_field("model", &H::model), later_json_field("config", &H::configuration),
                    later_json_field("parameters", &H::parameter_count),
                    later_json_field("unigram_loss", &H::unigram_loss),
                    later_json_field("commit_step", &H::commit_step), later_json_field("facts", &H::facts),
                    later_json_field("machine", &H::machine), later_json_field("prediction", &H::prediction));
}

}  // namespace terrace
