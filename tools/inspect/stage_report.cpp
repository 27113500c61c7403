#include "inspect/stage_report.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/counter_table.h>

#include "inspect/plan_report.h"
#include "text_table.h"

namespace terrace {
namespace {

std::string layers_text(const ModelConfig& model) {
  const ModelPart& part = *model.part;
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (part.has_embedding) add("embedding");
  if (model.layers == 1) add(fmt::format("block {}", part.first_layer));
  if (model.layers > 1)
    add(fmt::format("blocks {} to {}", part.first_layer, part.first_layer + model.layers - 1));
  if (part.has_norm) add("norm");
  if (part.has_head) add(part.ties_across ? "head, a copy of the table" : "head");
  return text;
}

uint64_t peak_of(const PlanPrediction& prediction, size_t tier) {
  return tier < prediction.tiers.size() ? prediction.tiers[tier].peak_bytes : 0;
}

uint64_t exchanged_bytes(const OffloadCounters& moved) {
  return std::max(moved.gather_in_bytes + moved.exchange_in_bytes,
                  moved.gather_out_bytes + moved.exchange_out_bytes);
}

std::string stages_table(const PipelinePlan& plan) {
  TextTable table({"stage", "parameters", "live", "activations of these", "device", "host", "nvme",
                   "nvme reads", "nvme writes", "data ranks exchange"});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PlannedStage& stage = plan.stages[s];
    const OffloadCounters& moved = stage.prediction.step;
    table.add({fmt::format("{}: {}", s, layers_text(stage.part.model)), grouped(stage.plan.parameter_count),
               fmt::format("{}", stage.live_micro_batches), format_bytes(stage.live_bytes),
               format_bytes(peak_of(stage.prediction, 0)), format_bytes(peak_of(stage.prediction, 1)),
               format_bytes(peak_of(stage.prediction, 2)), format_bytes(disk_read_bytes(moved)),
               format_bytes(disk_write_bytes(moved)), format_bytes(exchanged_bytes(moved))});
  }
  return table.text();
}

std::string messages_table(const PipelinePlan& plan) {
  TextTable table({"messages of a rank", "activation, a micro-batch", "gradient back", "tied table",
                   "sent in a step", "received"});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StageMessages& own = plan.stages[s].messages;
    table.add({fmt::format("stage {}", s), grouped(own.activation_bytes), grouped(own.gradient_bytes),
               grouped(own.tied_bytes), grouped(own.out_bytes), grouped(own.in_bytes)});
  }
  return table.text() + fmt::format("a host sends or receives at most {} over the network in a step\n",
                                    format_bytes(plan.host_bytes));
}

std::string times_text(const StagesReport& report) {
  const PipelinePlan& plan = report.plan;
  if (!plan.has_times) return report.no_times.empty() ? "" : "time: " + report.no_times + "\n";
  TextTable table({"time of a step", "forward, a micro-batch", "backward", "update", "idle", "busiest"});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PlannedStage& stage = plan.stages[s];
    const auto seconds = [](double value) { return fmt::format("{:.4f}", value); };
    table.add({fmt::format("stage {}", s), seconds(stage.forward_seconds), seconds(stage.backward_seconds),
               seconds(stage.prediction.update_seconds), seconds(plan.time.idle_seconds[s]),
               words_of_binding(stage.prediction)});
  }
  std::string text = table.text();
  text += fmt::format(
      "in all {:.4f} s a step, {:.4g} tokens/s; the network is busy for {:.4f} s of it; what binds is {}\n",
      plan.step_seconds, static_cast<double>(report.tokens_per_step) / plan.step_seconds,
      plan.time.line_seconds, words_of_binding(plan));
  if (report.network_is_unknown)
    text += "without what other hosts take: --network and --network-latency say how fast they are\n";
  return text + fmt::format("operations: {}\n", report.operations);
}

void write_stage(JsonWriter& json, const PipelinePlan& plan, size_t s) {
  const PlannedStage& stage = plan.stages[s];
  const PlanPrediction& prediction = stage.prediction;
  const StageMessages& messages = stage.messages;
  json.begin_object(JsonLayout::lines).member("stage", s).member("layers", layers_text(stage.part.model));
  json.member("first_layer", stage.part.first_layer).member("layer_end", stage.part.layer_end);
  json.member("parameters", stage.plan.parameter_count);
  json.member("trained_parameters", stage.plan.trainable_count);
  json.member("live_micro_batches", stage.live_micro_batches).member("live_bytes", stage.live_bytes);
  json.member("update", name_of(prediction.update_mode));
  write_tiers(json, prediction);
  write_links(json, prediction);
  json.begin_object("messages").member("activation_bytes", messages.activation_bytes);
  json.member("gradient_bytes", messages.gradient_bytes).member("tied_bytes", messages.tied_bytes);
  json.member("out_bytes", messages.out_bytes).member("in_bytes", messages.in_bytes);
  json.member("network_out_bytes", messages.network_out_bytes);
  json.member("network_in_bytes", messages.network_in_bytes).end();
  json.member("exchanged_bytes", exchanged_bytes(prediction.step));
  if (plan.has_times) {
    json.begin_object("time").member("forward_seconds", stage.forward_seconds);
    json.member("backward_seconds", stage.backward_seconds);
    json.member("update_seconds", prediction.update_seconds);
    json.member("idle_seconds", plan.time.idle_seconds[s]);
    json.member("bound_by", words_of_binding(prediction)).end();
  } else {
    json.member("time", nullptr);
  }
  json.end();
}

std::string rate_text(double bytes_per_second) {
  const double bits = 8 * bytes_per_second;
  if (bits >= 1e9) return fmt::format("{:.3g} Gbit/s ({:.3g} GB/s)", bits / 1e9, bytes_per_second / 1e9);
  return fmt::format("{:.3g} Mbit/s ({:.3g} MB/s)", bits / 1e6, bytes_per_second / 1e6);
}

std::string words_of(const StagesChoice& choice) {
  if (choice.stages == 1) return fmt::format("ZeRO-3 over {} ranks", choice.data_ranks);
  if (choice.data_ranks == 1) return fmt::format("{} stages", choice.stages);
  return fmt::format("{} stages of {} ranks", choice.stages, choice.data_ranks);
}

std::string crossing_text(const StagesComparison& comparison) {
  const StagesCrossing& crossing = comparison.crossing;
  if (!crossing.is_known) return "";
  const char* const faster = crossing.pipeline_wins ? "the pipeline" : "ZeRO-3";
  if (crossing.host_bytes == 0)
    return fmt::format("{} is faster than {} at every rate of the network\n", faster,
                       crossing.pipeline_wins ? "ZeRO-3" : "the pipeline");
  return fmt::format("below {} between hosts {} of {} stages is the faster one, and above that {}\n",
                     rate_text(crossing.host_bytes), faster, comparison.ranks,
                     crossing.pipeline_wins ? "ZeRO-3" : "the pipeline");
}

}  // namespace

std::string words_of_binding(const PlanPrediction& prediction) {
  const ResourceUse use = prediction.use();
  const uint64_t busiest = std::max({use.processor_ns, use.device_ns, use.disk_ns, use.h2d_ns, use.d2h_ns});
  const bool ranks_rule = prediction.ranks.seconds.total() * 1e9 > static_cast<double>(busiest);
  return ranks_rule ? "what ranks exchange" : std::string(name_of(prediction.binding));
}

std::string words_of_binding(const PipelinePlan& plan) {
  if (plan.network_binds) return "the network between stages";
  return fmt::format("stage {}: {}", plan.slowest_stage,
                     words_of_binding(plan.stages[plan.slowest_stage].prediction));
}

std::string stages_text(const StagesReport& report) {
  const PipelinePlan& plan = report.plan;
  std::string text =
      fmt::format("{}: in {} of {}; micro-batches of a step: {}; the bubble of 1F1B is {:.1f} % of it\n\n",
                  report.model, counted(plan.shape.stages, "stage"), counted(plan.shape.data_ranks, "rank"),
                  plan.shape.micro_batches, 100 * plan.bubble);
  text += stages_table(plan) + "\n" + messages_table(plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanPrediction& prediction = plan.stages[s].prediction;
    text += fmt::format("\nstage {}: {}; chunks of {} elements; the update runs {}\n", s,
                        layers_text(plan.stages[s].part.model), grouped(plan.stages[s].plan.chunk_elements),
                        name_of(prediction.update_mode));
    text += memory_table(prediction) + "\n" + link_table(prediction);
  }
  return text + "\n" + times_text(report);
}

std::string stages_json(const StagesReport& report) {
  const PipelinePlan& plan = report.plan;
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("model", report.model);
  json.begin_object("pipeline")
      .member("stages", plan.shape.stages)
      .member("data_ranks", plan.shape.data_ranks);
  json.member("ranks_per_host", plan.shape.ranks_per_host).member("micro_batches", plan.shape.micro_batches);
  json.member("bubble", plan.bubble).member("host_bytes", plan.host_bytes).end();
  json.member("tokens_per_step", report.tokens_per_step);
  json.begin_list("stages", JsonLayout::lines);
  for (size_t s = 0; s < plan.stages.size(); ++s) write_stage(json, plan, s);
  json.end();
  if (plan.has_times) {
    json.begin_object("time").member("step_seconds", plan.step_seconds);
    json.member("tokens_per_second", static_cast<double>(report.tokens_per_step) / plan.step_seconds);
    json.member("network_seconds", plan.time.line_seconds).member("slowest_stage", plan.slowest_stage);
    json.member("network_binds", plan.network_binds).member("bound_by", words_of_binding(plan)).end();
  } else {
    json.member("time", nullptr);
  }
  json.member("no_time", json_text_or_null(report.no_times));
  return json.end().take() + "\n";
}

std::string comparison_text(const StagesComparison& comparison) {
  std::string text = fmt::format("{} on {} ranks, {} tokens in a step\n\n", comparison.model,
                                 comparison.ranks, grouped(comparison.tokens_per_step));
  TextTable table({"all ranks as", "a host sends or receives, a step", "seconds", "tokens/s", "bound by"});
  for (const StagesChoice& choice : comparison.choices) {
    if (!choice.refusal.empty()) {
      table.add({words_of(choice), "-", "does not fit", "-", "-"});
      continue;
    }
    const bool timed = choice.has_times;
    table.add(
        {words_of(choice), format_bytes(choice.host_bytes),
         timed ? fmt::format("{:.3f}", choice.step_seconds) : "-",
         timed ? fmt::format("{:.4g}", static_cast<double>(comparison.tokens_per_step) / choice.step_seconds)
               : "-",
         timed ? choice.bound_by : "-"});
  }
  text += table.text() + crossing_text(comparison);
  if (comparison.network_is_unknown)
    text += "without what other hosts take: --network and --network-latency say how fast they are\n";
  return text + (comparison.no_times.empty() ? "" : "time: " + comparison.no_times + "\n");
}

std::string comparison_json(const StagesComparison& comparison) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("model", comparison.model).member("ranks", comparison.ranks);
  json.member("tokens_per_step", comparison.tokens_per_step);
  json.begin_list("choices", JsonLayout::lines);
  for (const StagesChoice& choice : comparison.choices) {
    const bool timed = choice.refusal.empty() && choice.has_times;
    json.begin_object().member("stages", choice.stages).member("data_ranks", choice.data_ranks);
    json.member("fits", choice.refusal.empty()).member("refusal", json_text_or_null(choice.refusal));
    json.member("host_bytes", choice.host_bytes);
    json.member("step_seconds", timed ? JsonValue(choice.step_seconds) : nullptr);
    json.member("bound_by", json_text_or_null(choice.bound_by)).end();
  }
  json.end();
  const StagesCrossing& crossing = comparison.crossing;
  if (crossing.is_known) {
    json.begin_object("crossing");
    json.member("host_bytes_per_second", crossing.host_bytes > 0 ? JsonValue(crossing.host_bytes) : nullptr);
    json.member("pipeline_is_faster_below", crossing.pipeline_wins).end();
  } else {
    json.member("crossing", nullptr);
  }
  json.member("no_time", json_text_or_null(comparison.no_times));
  return json.end().take() + "\n";
}

}  // namespace terrace
