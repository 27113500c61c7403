#include <terrace/runtime/observe/page/report_json.h>

#include <fmt/format.h>

#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/link_table.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/observe/page/internal/json_parts.h>
#include <terrace/runtime/observe/page/internal/picture_json.h>

namespace terrace {
namespace {

using page_json::list;
using page_json::number;
using page_json::text_json;

constexpr size_t kLongestMark = 300;  // bytes

std::string facts_json(const std::vector<ReportFact>& facts) {
  return list(facts, [](const ReportFact& fact) {
    return fmt::format("[{},{}]", text_json(fact.name), text_json(fact.text));
  });
}

std::string header_json(const RunHeader& header) {
  const std::string configuration = list(header.configuration, [](const ResolvedValue& value) {
    return fmt::format("[{},{},{},{}]", text_json(value.key), text_json(value.value), text_json(value.origin),
                       text_json(value.note));
  });
  return fmt::format(R"({{"version":{},"model":{},"parameters":{},"planned_steps":{},"resumed_at_step":{},)"
                     R"("unigram_loss":{},"started_at":{},"facts":{},"machine":{},"configuration":{}}})",
                     text_json(header.version), text_json(header.model), header.parameter_count,
                     header.planned_steps, header.resumed_at_step, number(header.unigram_loss),
                     header.started_at, facts_json(header.facts), facts_json(header.machine), configuration);
}

std::string uses_json(const std::vector<TierUse>& uses) {
  return list(uses,
              [](const TierUse& use) { return fmt::format("[{},{}]", text_json(use.purpose), use.bytes); });
}

std::string memory_json(const RunMemory& memory) {
  const std::string tiers = list(memory.tiers, [](const TierSummary& tier) {
    return fmt::format(
        R"({{"name":{},"budget_bytes":{},"origin":{},"planned_bytes":{},"peak_bytes":{},"uses":{}}})",
        text_json(tier.name), tier.budget_bytes, text_json(tier.origin), tier.planned_bytes, tier.peak_bytes,
        uses_json(tier.uses));
  });
  const std::string paths = list(memory.paths, [](const NvmePathUse& path) {
    return fmt::format(R"({{"path":{},"bytes":{},"busy_ns":{}}})", text_json(path.path), path.bytes,
                       path.busy_ns);
  });
  return fmt::format(R"({{"tiers":{},"paths":{},"process_bytes":{}}})", tiers, paths, memory.process_bytes);
}

std::string causes_json(const TimeParts& parts) {
  return list(kTimeCauses, [&](TimeCause cause) { return std::to_string(parts[cause]); });
}

std::string links_json(const OffloadCounters& moved) {
  return list(kLinks, [&](const LinkEntry& link) { return std::to_string(moved.*link.moved); });
}

// The names of the columns that follow everywhere.
std::string words_json(const RunRecord& record) {
  const StepPoint& all = record.all();
  const OffloadCounters moved = all.moved + record.rest().moved;
  const std::string causes = list(kTimeCauses, [](TimeCause cause) {
    return fmt::format(R"({{"key":"{}","name":"{}"}})", key_of(cause), name_of(cause));
  });
  const std::string links = list(kLinks, [&](const LinkEntry& link) {
    return fmt::format(R"({{"key":"{}","name":"{}","least":{},"fixed":{}}})", link.key, link.name,
                       least_per_step(link, record.memory.bound, moved, all.count), link.bound == nullptr);
  });
  return fmt::format(R"("causes":{},"links":{})", causes, links);
}

std::string resources_json(const OffloadCounters& moved) {
  const ResourceUse use = resource_use(moved);
  return fmt::format(
      R"({{"total_ns":{},"processor_ns":{},"disk_ns":{},"h2d_ns":{},"d2h_ns":{},"binding":"{}","binding_name":"{}","text":{}}})",
      use.total_ns, use.processor_ns, use.disk_ns, use.h2d_ns, use.d2h_ns, key_of(use.binding),
      name_of(use.binding), text_json(resource_text(use)));
}

// Of all steps of the run; what was finished after the last of them stands beside it.
std::string totals_json(const RunRecord& record) {
  const StepPoint& all = record.all();
  const OffloadCounters moved = all.moved + record.rest().moved;
  const std::string waits = list(kWaits, [&](const WaitEntry& wait) {
    return fmt::format(R"({{"key":"{}","name":"{}","ns":{}}})", wait.key, wait.name, moved.*wait.ns);
  });
  return fmt::format(
      R"({{"steps":{},"skipped":{},"tokens":{},"total_ns":{},"forward_backward_ns":{},"update_ns":{},)"
      R"("keeping_ns":{},"causes":{},"links":{},"waits":{},"fetches":{},"demand_fetches":{},"evictions":{},)"
      R"("commits":{},"commit_write_bytes":{},"manifest_bytes":{},"resources":{},)"
      R"("rest":{{"ns":{},"causes":{},"links":{}}}}})",
      all.count, all.skipped, all.tokens, all.total_ns, all.forward_backward_ns, all.update_ns,
      all.keeping_ns, causes_json(all.moved.time), links_json(all.moved), waits, moved.fetch_count,
      moved.demand_fetch_count, moved.eviction_count, moved.commit_count, moved.commit_write_bytes,
      moved.manifest_bytes, resources_json(moved), record.rest().ns, causes_json(record.rest().moved.time),
      links_json(record.rest().moved));
}

std::string last_step_json(const RunRecord& record) {
  if (!record.last_step()) return "null";
  const StepReport& step = *record.last_step();
  return fmt::format(
      R"({{"step":{},"loss":{},"learning_rate":{},"gradient_norm":{},"skipped":{},"loss_scale":{},)"
      R"("tokens":{},"total_ns":{},"update_mode":"{}"}})",
      step.step, number(step.loss), number(step.learning_rate), number(step.gradient_norm), step.skipped,
      number(step.loss_scale), step.tokens, step.total_ns, name_of(step.update_mode));
}

std::string range_json(std::span<const StepPoint> points, ValueRange StepPoint::*range, bool merged) {
  const auto column = [&](double (*value)(const ValueRange&)) {
    return list(points, [&](const StepPoint& point) {
      const ValueRange& values = point.*range;
      return values.count > 0 ? number(value(values)) : std::string("null");
    });
  };
  std::string text = fmt::format(R"({{"mean":{})", column([](const ValueRange& v) { return v.mean(); }));
  if (merged) {
    text += fmt::format(R"(,"least":{},"most":{})", column([](const ValueRange& v) { return v.least; }),
                        column([](const ValueRange& v) { return v.most; }));
  }
  return text + "}";
}

std::string series_json(const StepSeries& series) {
  const std::span<const StepPoint> points = series.points();
  const bool merged = series.steps_per_point() > 1;
  const auto whole = [&](FunctionRef<uint64_t(const StepPoint&)> value) {
    return list(points, [&](const StepPoint& point) { return std::to_string(value(point)); });
  };
  const auto real = [&](double StepPoint::*value) {
    return list(points, [&](const StepPoint& point) { return number(point.*value); });
  };
  const std::string causes = list(kTimeCauses, [&](TimeCause cause) {
    return whole([cause](const StepPoint& point) { return point.moved.time[cause]; });
  });
  const std::string links = list(kLinks, [&](const LinkEntry& link) {
    return whole([&link](const StepPoint& point) { return point.moved.*link.moved; });
  });
  return fmt::format(
      R"({{"first_step":{},"steps_per_point":{},"count":{},"skipped":{},"tokens":{},"total_ns":{},"loss":{},)"
      R"("gradient_norm":{},"step_ns":{},"learning_rate":{},"loss_scale":{},"causes":{},"links":{},)"
      R"("busy":{{"h2d":{},"d2h":{},"disk":{}}}}})",
      points.empty() ? 0 : points.front().first_step, series.steps_per_point(),
      whole([](const StepPoint& p) { return p.count; }), whole([](const StepPoint& p) { return p.skipped; }),
      whole([](const StepPoint& p) { return p.tokens; }),
      whole([](const StepPoint& p) { return p.total_ns; }), range_json(points, &StepPoint::loss, merged),
      range_json(points, &StepPoint::gradient_norm, merged), range_json(points, &StepPoint::step_ns, merged),
      real(&StepPoint::learning_rate), real(&StepPoint::loss_scale), causes, links,
      whole([](const StepPoint& p) { return p.moved.h2d_busy_ns; }),
      whole([](const StepPoint& p) { return p.moved.d2h_busy_ns; }),
      whole([](const StepPoint& p) { return resource_use(p.moved).disk_ns; }));
}

std::string marks_json(const RunRecord& record) {
  const auto thinned = [](const auto& marks, const std::string& items) {
    return fmt::format(R"({{"count":{},"every":{},"items":{}}})", marks.count(), marks.stride(), items);
  };
  return fmt::format(
      R"({{"evaluations":{},"commits":{},"checkpoints":{}}})",
      thinned(record.evaluations(), list(record.evaluations().items(),
                                         [](const EvaluationMark& mark) {
                                           return fmt::format("[{},{}]", mark.step, number(mark.loss));
                                         })),
      thinned(record.epochs(),
              list(record.epochs().items(), [](const EpochMark& mark) { return std::to_string(mark.step); })),
      thinned(record.checkpoints(), list(record.checkpoints().items(), [](const CheckpointMark& mark) {
                return fmt::format("[{},{}]", mark.step, json_quoted(mark.folder, kLongestMark));
              })));
}

std::string log_json(const LogRecord& log) {
  const std::string lines = list(log.lines(), [](const LoggedLine& line) {
    return fmt::format(R"({{"level":"{}","step":{},"text":{}}})",
                       line.level == LogLevel::error ? "error" : "warning", line.completed_steps,
                       text_json(line.text));
  });
  return fmt::format(R"({{"lines":{},"left_out":{}}})", lines, log.left_out());
}

std::string prediction_json(const std::optional<PlanPrediction>& prediction) {
  if (!prediction) return "null";
  const std::string tiers = list(prediction->tiers, [](const PredictedTier& tier) {
    return fmt::format(R"({{"name":{},"budget_bytes":{},"peak_bytes":{}}})", text_json(tier.name),
                       tier.budget_bytes, tier.peak_bytes);
  });
  const std::string rates = list(prediction->rates, [](const PredictedRate& rate) {
    return fmt::format(R"({{"name":{},"value":{},"unit":{},"origin":{}}})", text_json(rate.name),
                       number(rate.value), text_json(rate.unit), text_json(rate.origin));
  });
  return fmt::format(
      R"({{"links":{},"causes":{},"repeats_from_step":{},"tiers":{},"commit_write_bytes":{},"has_times":{},)"
      R"("forward_seconds":{},"backward_seconds":{},"update_seconds":{},"step_seconds":{},)"
      R"("binding":"{}","binding_name":"{}","rates":{}}})",
      links_json(prediction->step), causes_json(prediction->step.time), prediction->repeats_from_step, tiers,
      prediction->commit_write_bytes, prediction->has_times, number(prediction->forward_seconds),
      number(prediction->backward_seconds), number(prediction->update_seconds),
      number(prediction->step_seconds), key_of(prediction->binding), name_of(prediction->binding), rates);
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
  return json_for_html(fmt::format(
      "{{\"format\":1,\"state\":\"{}\",\"state_text\":{},\"written_at\":{},\n\"header\":{},\n{},\n"
      "\"totals\":{},\n\"last_step\":{},\n\"memory\":{},\n\"marks\":{},\n\"log\":{},\n\"prediction\":{},\n"
      "\"picture\":{},\n\"series\":{}}}",
      key_of(record.state()), text_json(record.state_text()), written_at, header_json(record.header),
      words_json(record), totals_json(record), last_step_json(record), memory_json(record.memory),
      marks_json(record), log_json(record.log()), prediction_json(record.header.prediction),
      picture_json(record.picture), series_json(record.series())));
}

}  // namespace terrace
