#include <terrace/runtime/observe/page/report_json.h>

#include <fmt/format.h>

#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

constexpr size_t kLongestText = 4000;  // bytes; what is longer is cut
constexpr size_t kLongestMark = 300;

void write_header(JsonWriter& json, const RunHeader& header) {
  json.begin_object("header").members({{"version", header.version}, {"model", header.model}});
  json.members({{"parameters", header.parameter_count}, {"planned_steps", header.planned_steps}});
  json.members({{"resumed_at_step", header.resumed_at_step}, {"unigram_loss", header.unigram_loss}});
  json.member("started_at", header.started_at);
  write_json(json.key("facts"), header.facts);
  write_json(json.key("machine"), header.machine);
  json.list("configuration", header.configuration, [&](const ResolvedValue& value) {
    json.list({value.key, value.value, value.origin, value.note});
  });
  json.end();
}

void write_causes(JsonWriter& json, const TimeParts& parts) {
  json.list("causes", kTimeCauses, [&](TimeCause cause) { json.value(parts[cause]); });
}

void write_links(JsonWriter& json, const OffloadCounters& moved) {
  json.list("links", kLinks, [&](const CounterEntry& link) { json.value(moved.*link.value); });
}

// The names of the columns that follow everywhere.
void write_words(JsonWriter& json, const RunRecord& record) {
  const StepPoint& all = record.all();
  const OffloadCounters moved = record.moved();
  json.list("causes", kTimeCauses, [&](TimeCause cause) {
    json.object({{"key", key_of(cause)}, {"name", name_of(cause)}});
  });
  json.list("links", kLinks, [&](const CounterEntry& link) {
    const uint64_t least = least_per_step(link, record.memory().bound, moved, all.count);
    json.object({{"key", link.key}, {"name", link.name}, {"least", least}, {"fixed", link.bound == nullptr}});
  });
}

void write_resources(JsonWriter& json, const OffloadCounters& moved) {
  const ResourceUse use = resource_use(moved);
  json.begin_object("resources").members({{"total_ns", use.total_ns}, {"processor_ns", use.processor_ns}});
  json.members({{"disk_ns", use.disk_ns}, {"h2d_ns", use.h2d_ns}, {"d2h_ns", use.d2h_ns}});
  json.members({{"binding", key_of(use.binding)}, {"binding_name", name_of(use.binding)}});
  json.member("text", resource_text(use)).end();
}

// Of all steps of the run; what was finished after the last of them stands beside it.
void write_totals(JsonWriter& json, const RunRecord& record) {
  const StepPoint& all = record.all();
  const OffloadCounters moved = record.moved();
  json.begin_object("totals");
  json.members({{"steps", all.count}, {"skipped", all.skipped}, {"tokens", all.tokens}});
  json.members({{"total_ns", all.total_ns}, {"forward_backward_ns", all.forward_backward_ns}});
  json.members({{"update_ns", all.update_ns}, {"keeping_ns", all.keeping_ns}});
  write_causes(json, all.moved.time);
  write_links(json, all.moved);
  json.list("waits", kWaits, [&](const CounterEntry& wait) {
    json.object({{"key", wait.key}, {"name", wait.name}, {"ns", moved.*wait.value}});
  });
  json.members({{"fetches", moved.fetch_count}, {"demand_fetches", moved.demand_fetch_count}});
  json.members({{"evictions", moved.eviction_count}, {"commits", moved.commit_count}});
  json.members({{"commit_write_bytes", moved.commit_write_bytes}, {"manifest_bytes", moved.manifest_bytes}});
  write_resources(json, moved);
  json.begin_object("rest").member("ns", record.rest().ns);
  write_causes(json, record.rest().moved.time);
  write_links(json, record.rest().moved);
  json.end().end();
}

void write_last_step(JsonWriter& json, const StepReport& step) {
  json.begin_object("last_step");
  json.members({{"step", step.step}, {"loss", step.loss}, {"learning_rate", step.learning_rate}});
  json.members({{"gradient_norm", step.gradient_norm}, {"skipped", step.skipped}});
  json.members({{"loss_scale", step.loss_scale}, {"tokens", step.tokens}, {"total_ns", step.total_ns}});
  json.member("update_mode", name_of(step.update_mode)).end();
}

void write_range(JsonWriter& json, std::string_view key, const StepSeries& series,
                 ValueRange StepPoint::*range) {
  const auto column = [&](std::string_view name, FunctionRef<double(const ValueRange&)> value) {
    json.list(name, series.points(), [&](const StepPoint& point) {
      const ValueRange& values = point.*range;
      json.value(values.count > 0 ? JsonValue(value(values)) : nullptr);
    });
  };
  json.begin_object(key);
  column("mean", [](const ValueRange& values) { return values.mean(); });
  if (series.steps_per_point() > 1) {
    column("least", [](const ValueRange& values) { return values.least; });
    column("most", [](const ValueRange& values) { return values.most; });
  }
  json.end();
}

void write_series(JsonWriter& json, const StepSeries& series) {
  const std::span<const StepPoint> points = series.points();
  const auto column = [&](std::string_view key, auto value) {
    json.list(key, points, [&](const StepPoint& point) { json.value(value(point)); });
  };
  const auto row = [&](FunctionRef<uint64_t(const StepPoint&)> value) {
    json.begin_list();
    for (const StepPoint& point : points) json.value(value(point));
    json.end();
  };
  json.begin_object("series").member("first_step", points.empty() ? 0 : points.front().first_step);
  json.member("steps_per_point", series.steps_per_point());
  column("count", [](const StepPoint& p) { return p.count; });
  column("skipped", [](const StepPoint& p) { return p.skipped; });
  column("tokens", [](const StepPoint& p) { return p.tokens; });
  column("total_ns", [](const StepPoint& p) { return p.total_ns; });
  write_range(json, "loss", series, &StepPoint::loss);
  write_range(json, "gradient_norm", series, &StepPoint::gradient_norm);
  write_range(json, "step_ns", series, &StepPoint::step_ns);
  column("learning_rate", [](const StepPoint& p) { return p.learning_rate; });
  column("loss_scale", [](const StepPoint& p) { return p.loss_scale; });
  json.list("causes", kTimeCauses, [&](TimeCause cause) {
    row([cause](const StepPoint& point) { return point.moved.time[cause]; });
  });
  json.list("links", kLinks, [&](const CounterEntry& link) {
    row([&link](const StepPoint& point) { return point.moved.*link.value; });
  });
  json.begin_object("busy");
  column("h2d", [](const StepPoint& p) { return p.moved.h2d_busy_ns; });
  column("d2h", [](const StepPoint& p) { return p.moved.d2h_busy_ns; });
  column("disk", [](const StepPoint& p) { return resource_use(p.moved).disk_ns; });
  json.end().end();
}

void write_marks(JsonWriter& json, const RunRecord& record) {
  const auto write = [&](std::string_view key, const auto& marks, auto item) {
    json.begin_object(key).members({{"count", marks.count()}, {"every", marks.stride()}});
    json.list("items", marks.items(), item).end();
  };
  json.begin_object("marks");
  write("evaluations", record.evaluations(), [&](const EvaluationMark& mark) {
    json.list({mark.step, mark.loss});
  });
  write("commits", record.commits(), [&](uint64_t step) { json.value(step); });
  write("checkpoints", record.checkpoints(), [&](const CheckpointMark& mark) {
    json.list({mark.step, json_raw(json_quoted(mark.folder, kLongestMark))});
  });
  json.end();
}

void write_log(JsonWriter& json, const RunRecord& record) {
  json.begin_object("log").list("lines", record.said(), [&](const LoggedLine& line) {
    const char* level = line.level == LogLevel::error ? "error" : "warning";
    json.object({{"level", level}, {"step", line.completed_steps}, {"text", line.text}});
  });
  json.member("left_out", record.said_and_left_out()).end();
}

void write_prediction(JsonWriter& json, const PlanPrediction& prediction, const PredictedPart& measured) {
  write_fields(json.begin_object("prediction"), prediction);
  json.member("binding_name", name_of(prediction.binding));
  write_links(json, prediction.step);
  json.begin_object("measured").member("steps", measured.steps);
  json.member("of_other_modes", measured.of_other_modes);
  write_links(json, measured.moved);
  json.end().end();
}

}  // namespace

std::string json_for_html(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      text += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  return text;
}

std::string report_json(const RunRecord& record, int64_t written_at) {
  JsonWriter json({.dense = true, .longest_text_bytes = kLongestText});
  json.begin_object().members({{"format", 1}, {"state", key_of(record.state())}});
  json.members({{"state_text", record.state_text()}, {"written_at", written_at}});
  write_header(json.break_line(), record.header());
  write_words(json.break_line(), record);
  write_totals(json.break_line(), record);
  json.break_line();
  record.last_step() ? write_last_step(json, *record.last_step())
                     : static_cast<void>(json.member("last_step", nullptr));
  write_json(json.break_line().key("memory"), record.memory());
  write_marks(json.break_line(), record);
  write_log(json.break_line(), record);
  json.break_line();
  const std::optional<PlanPrediction>& prediction = record.header().prediction;
  prediction ? write_prediction(json, *prediction, record.predicted())
             : static_cast<void>(json.member("prediction", nullptr));
  json.break_line().member("picture", record.picture().empty() ? nullptr : json_raw(record.picture()));
  write_series(json.break_line(), record.series());
  return json_for_html(json.end().take());
}

}  // namespace terrace
