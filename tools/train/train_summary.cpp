#include "train/train_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/observe/log/step_log.h>

#include "text_table.h"
#include "train/progress_line.h"
#include "train/train_prediction.h"

namespace terrace {
namespace {

uint64_t least_of(const RunRecord& run, const CounterEntry& link) {
  return least_per_step(link, run.memory().bound, run.moved(), run.all().count);
}

// All that the run took, with what was finished after its last step.
uint64_t total_ns(const RunRecord& run) {
  return run.all().total_ns + run.rest().ns;
}

uint64_t update_ns(const RunRecord& run) {
  return run.all().update_ns + run.rest().ns;
}

double per(double amount, double unit) {
  return unit > 0 ? amount / unit : 0;
}

double per_step(const RunRecord& run, uint64_t amount) {
  return per(static_cast<double>(amount), static_cast<double>(run.all().count));
}

std::string memory_table(const RunRecord& run) {
  TextTable table({"memory", "budget", "planned", "peak used"});
  for (const TierSummary& tier : run.memory().tiers) {
    const std::string no_budget = tier.name == "nvme" ? "disk" : "none";
    table.add({tier.name, tier.budget_bytes > 0 ? format_bytes(tier.budget_bytes) : no_budget,
               format_bytes(tier.planned_bytes), format_bytes(tier.peak_bytes)});
  }
  table.add(
      {"whole process, as the system counts it (Pss)", "", "", format_bytes(run.memory().process_bytes)});
  return table.text();
}

std::string link_table(const RunRecord& run) {
  TextTable table({"bytes moved", "total", "per step", "least possible", "ratio"});
  for (const CounterEntry& link : kLinks) {
    const uint64_t moved = run.moved().*link.value;
    const uint64_t bound = least_of(run, link);
    if (moved == 0 && bound == 0) continue;
    const double step = per_step(run, moved);
    table.add(
        {std::string(link.name), format_bytes(moved), format_bytes(static_cast<uint64_t>(step)),
         format_bytes(bound),
         bound > 0 && run.all().count > 0 ? fmt::format("{:.3f}", step / static_cast<double>(bound)) : "-"});
  }
  return table.text();
}

std::string path_table(const RunRecord& run) {
  TextTable table({"nvme path", "read and written", "busy", "rate"});
  for (const NvmePathUse& path : run.memory().paths) {
    table.add(
        {path.path, format_bytes(path.bytes), seconds_text(seconds(path.busy_ns)),
         fmt::format("{:.2f} GB/s", per(static_cast<double>(path.bytes) * 1e-9, seconds(path.busy_ns)))});
  }
  return table.text();
}

void write_paths(JsonWriter& json, const RunRecord& run) {
  json.list("paths", run.memory().paths, [&](const NvmePathUse& path) {
    json.begin_object().members({{"path", path.path}, {"bytes", path.bytes}});
    json.member("busy_seconds", seconds(path.busy_ns));
    json.member("bytes_per_second", per(static_cast<double>(path.bytes), seconds(path.busy_ns))).end();
  });
}

void add_time(TextTable& table, const RunRecord& run, std::string_view name, uint64_t ns) {
  table.add({std::string(name), seconds_text(seconds(ns)), seconds_text(per_step(run, ns) * 1e-9),
             percent_text(seconds(ns), seconds(total_ns(run)))});
}

// Every nanosecond counts in one row.
std::string time_table(const RunRecord& run) {
  TextTable table({"time", "total", "per step", "share"});
  for (const TimeCause cause : kTimeCauses) {
    const uint64_t ns = run.moved().time[cause];
    if (cause != TimeCause::ranks || ns > 0) add_time(table, run, name_of(cause), ns);
  }
  add_time(table, run, "all steps", total_ns(run));
  return table.text() + resource_text(resource_use(run.moved())) + "\n";
}

// The rows are phases of the same time and waits within it, so they overlap.
std::string phase_table(const RunRecord& run) {
  TextTable table({"of it", "total", "per step", "share"});
  add_time(table, run, "forward and backward", run.all().forward_backward_ns);
  add_time(table, run, "the end of the step", update_ns(run));
  if (run.all().keeping_ns > 0) add_time(table, run, "keeping the state", run.all().keeping_ns);
  for (const CounterEntry& wait : kWaits) {
    if (run.moved().*wait.value > 0) add_time(table, run, wait.name, run.moved().*wait.value);
  }
  return table.text();
}

// What is no text has a loss of its own kind.
std::string losses_text(const RunRecord& run) {
  std::string text;
  const bool has_tokens = run.all().tokens > 0;
  if (run.last_step())
    text = fmt::format("training loss of step {}: {}{}\n", run.completed_steps(),
                       loss_text(run.last_step()->loss), has_tokens ? " nats per token" : "");
  if (run.all().count > 0 && !has_tokens) return text;
  const double unigram = run.header().unigram_loss;
  const std::optional<EvaluationMark>& held_out = run.last_evaluation();
  if (!held_out) {
    return text + "held-out loss not computed" +
           (unigram > 0 ? fmt::format("; unigram loss of the data {:.4f}\n", unigram) : "\n");
  }
  text += fmt::format("held-out loss of step {}: {}, perplexity {:.4g}", held_out->step,
                      loss_text(held_out->loss), std::exp(held_out->loss));
  const double gain = unigram - held_out->loss;
  return text + (unigram > 0 ? fmt::format("; {} {} the unigram loss of the data\n",
                                           loss_text(gain < 0 ? -gain : gain), gain < 0 ? "above" : "below")
                             : "\n");
}

// Of several ranks the paths that hold the folders of all: what one of them has is no state.
std::string nvme_paths(const RunRecord& run) {
  std::string paths;
  for (const NvmePathUse& use : run.memory().paths) {
    const std::filesystem::path path(use.path);
    const bool is_of_rank = parse_tier_name(path.filename().string()).has_value();
    paths += (paths.empty() ? "" : " ") + (is_of_rank ? path.parent_path().string() : use.path);
  }
  return paths;
}

// Says where the state is, and of a run of this program which command goes on from it.
std::string state_text(const RunRecord& run, const SummaryStyle& style) {
  std::string text;
  if (run.commit_step())
    text += fmt::format("commit of step {0} in {1} (`terrace checkpoint ls {1}` lists it)\n",
                        *run.commit_step(), nvme_paths(run));
  const std::string& checkpoint = run.last_checkpoint();
  if (!checkpoint.empty()) text += fmt::format("checkpoint {}\n", checkpoint);
  if (!style.is_own) return text;
  if (!checkpoint.empty()) {
    text += fmt::format("export it with: terrace export {} --out FOLDER{}\n",
                        std::filesystem::path(checkpoint).parent_path().string(),
                        style.tokenizer.empty() ? "" : " --tokenizer " + style.tokenizer);
  } else if (!run.commit_step()) {
    return text + (run.all().count == 0
                       ? "nothing was saved: this run did no step\n"
                       : "nothing was saved: --save FOLDER keeps the weights that are trained\n");
  }
  const bool is_done = run.completed_steps() >= run.header().planned_steps;
  return text +
         fmt::format("go on with: the same command, --resume auto{}\n", is_done ? " and more --steps" : "");
}

std::string commits_text(const RunRecord& run) {
  if (!run.memory().commits) return "";
  const CommitTotals& done = *run.memory().commits;
  return fmt::format("{}: {} of resident states and {} of manifests written\n", counted(done.count, "commit"),
                     format_bytes(done.write_bytes), format_bytes(done.manifest_bytes));
}

void write_commits(JsonWriter& json, const RunRecord& run) {
  if (!run.memory().commits) {
    json.member("commits", nullptr);
    return;
  }
  const CommitTotals& done = *run.memory().commits;
  json.begin_object("commits").members({{"step", run.commit_step()}, {"paths", nvme_paths(run)}});
  json.members({{"count", done.count}, {"write_bytes", done.write_bytes}});
  json.member("manifest_bytes", done.manifest_bytes);
  json.member("keeping_seconds", seconds(run.all().keeping_ns)).end();
}

void write_time(JsonWriter& json, const RunRecord& run) {
  const double total = seconds(total_ns(run));
  json.begin_object("time").member("seconds", total);
  json.member("forward_backward_seconds", seconds(run.all().forward_backward_ns));
  json.member("update_seconds", seconds(update_ns(run)));
  for (const CounterEntry& wait : kWaits) {
    const double waited = seconds(run.moved().*wait.value);
    json.member(fmt::format("{}_seconds", wait.key), waited);
    json.member(fmt::format("{}_share", wait.key), per(waited, total));
  }
  write_time_parts(json, "parts_ns", run.moved().time);
  json.end();
}

void write_tiers(JsonWriter& json, const RunRecord& run) {
  json.begin_list("tiers", JsonLayout::lines);
  for (const TierSummary& tier : run.memory().tiers) {
    json.begin_object().member("tier", tier.name);
    json.member("budget_bytes", tier.budget_bytes > 0 ? JsonValue(tier.budget_bytes) : nullptr);
    json.members({{"budget_origin", tier.origin}, {"planned_bytes", tier.planned_bytes}});
    json.member("peak_bytes", tier.peak_bytes);
    write_json(json.key("uses"), tier.uses);
    json.end();
  }
  json.end();
}

void write_links(JsonWriter& json, const RunRecord& run) {
  json.begin_list("links", JsonLayout::lines);
  for (const CounterEntry& link : kLinks) {
    const uint64_t bound = least_of(run, link);
    const double step = per_step(run, run.moved().*link.value);
    const bool has_ratio = bound > 0 && run.all().count > 0;
    json.begin_object().members({{"link", link.key}, {"bytes", run.moved().*link.value}});
    json.members({{"bytes_per_step", step}, {"least_bytes_per_step", bound}});
    json.member("ratio", has_ratio ? JsonValue(step / static_cast<double>(bound)) : nullptr).end();
  }
  json.end();
}

}  // namespace

RunMemory memory_of(Trainer& trainer, const TrainerPlan& plan) {
  RunMemory memory = memory_of(JobMemory{trainer.offloader(), trainer.device(), plan.device.bytes});
  memory.tiers[0].origin = plan.device.origin;
  memory.tiers[1].budget_bytes = plan.host.bytes;
  memory.tiers[1].origin = plan.host.origin;
  if (memory.tiers.size() < 3) return memory;
  memory.tiers[2].planned_bytes = 0;
  for (const PathShare& share : plan.disk) memory.tiers[2].planned_bytes += share.bytes;
  return memory;
}

namespace {

std::string detail_text(const RunRecord& run) {
  std::string text = commits_text(run);
  if (run.all().count == 0) return text;
  const std::string links = link_table(run);
  if (std::count(links.begin(), links.end(), '\n') > 1) text += "\n" + links;
  if (!run.memory().paths.empty()) text += "\n" + path_table(run);
  text += "\n" + time_table(run) + "\n" + phase_table(run);
  const std::string planned = prediction_text(run);
  if (!planned.empty()) text += "\n" + planned;
  return text + fmt::format("\n{} chunk fetches, {} of them on demand; {} evictions\n",
                            grouped(run.moved().fetch_count), grouped(run.moved().demand_fetch_count),
                            grouped(run.moved().eviction_count));
}

std::string steps_text(const RunRecord& run) {
  const uint64_t planned = run.header().planned_steps;
  const StepPoint& all = run.all();
  const bool is_beyond = planned > 0 && run.completed_steps() > planned;
  if (is_beyond || (all.count == 0 && run.state() == RunState::complete)) {
    return fmt::format("the checkpoint is of step {}, and --steps {} asks for no more: nothing was trained\n",
                       run.completed_steps(), planned);
  }
  const double total = seconds(total_ns(run));
  std::string text = planned > 0 ? fmt::format("{} of {} steps done", run.completed_steps(), planned)
                                 : counted(run.completed_steps(), "step") + " done";
  text +=
      all.tokens > 0 || all.count == 0
          ? fmt::format(", {} in this run: {} tokens in {}, {:.1f} tokens/s\n", all.count,
                        grouped(all.tokens), seconds_text(total), per(static_cast<double>(all.tokens), total))
          : fmt::format(", {} in this run: {}, {:.3g} steps/s\n", all.count, seconds_text(total),
                        per(static_cast<double>(all.count), total));
  if (all.skipped > 0)
    text += fmt::format("{} of them overflowed in fp16 and were skipped\n", grouped(all.skipped));
  return text;
}

}  // namespace

// The result comes last.
std::string summary_text(const RunRecord& run, const SummaryStyle& style) {
  std::string text = memory_table(run);
  if (style.verbose) {
    text += detail_text(run);
  } else if (run.all().count > 0) {
    text += resource_text(resource_use(run.moved())) + "\n";
  }
  return text + "\n" + steps_text(run) + losses_text(run) + state_text(run, style);
}

std::string summary_json(const RunRecord& run) {
  const std::optional<EvaluationMark>& held_out = run.last_evaluation();
  const double total = seconds(total_ns(run));
  JsonWriter json;
  json.begin_object(JsonLayout::lines).members({{"version", TERRACE_VERSION}, {"model", run.header().model}});
  json.members({{"parameters", run.header().parameter_count}, {"planned_steps", run.header().planned_steps}});
  json.member("completed_steps", run.completed_steps());
  json.member("stopped_by", json_text_or_null(run.stopped_by()));
  json.members({{"validation_loss", held_out ? JsonValue(held_out->loss) : nullptr},
                {"unigram_loss", run.header().unigram_loss}});
  json.member("last_training_loss", run.all().count > 0 ? JsonValue(run.last_step()->loss) : nullptr);
  json.member("checkpoint", json_text_or_null(run.last_checkpoint()));
  write_commits(json, run);
  write_prediction(json, run);
  json.members({{"steps", run.all().count}, {"skipped_steps", run.all().skipped}});
  json.member("tokens", run.all().tokens);
  json.member("steps_per_second", per(static_cast<double>(run.all().count), total));
  json.member("tokens_per_second", per(static_cast<double>(run.all().tokens), total));
  write_time(json, run);
  json.member("bound_by", key_of(resource_use(run.moved()).binding));
  json.member("fetches", run.moved().fetch_count);
  json.member("demand_fetches", run.moved().demand_fetch_count);
  json.member("evictions", run.moved().eviction_count);
  write_tiers(json, run);
  write_links(json, run);
  write_paths(json, run);
  return json.member("process_pss_bytes", run.memory().process_bytes).end().take() + "\n";
}

}  // namespace terrace
