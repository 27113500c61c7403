#include "train/train_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/observe/log/step_log.h>

#include "text_table.h"
#include "train/progress_line.h"

namespace terrace {
namespace {

uint64_t least_of(const RunSummary& summary, const CounterEntry& link) {
  return least_per_step(link, summary.bound, summary.moved, summary.steps);
}

double per(double amount, double unit) {
  return unit > 0 ? amount / unit : 0;
}

double per_step(const RunSummary& summary, uint64_t amount) {
  return per(static_cast<double>(amount), static_cast<double>(summary.steps));
}

std::string memory_table(const RunSummary& summary) {
  TextTable table({"memory", "budget", "planned", "peak used"});
  for (const TierSummary& tier : summary.tiers) {
    table.add({tier.name, tier.budget_bytes > 0 ? format_bytes(tier.budget_bytes) : "disk",
               format_bytes(tier.planned_bytes), format_bytes(tier.peak_bytes)});
  }
  table.add({"whole process, as the system counts it (Pss)", "", "", format_bytes(summary.process_bytes)});
  return table.text();
}

std::string link_table(const RunSummary& summary) {
  TextTable table({"bytes moved", "total", "per step", "least possible", "ratio"});
  for (const CounterEntry& link : kLinks) {
    const uint64_t moved = summary.moved.*link.value;
    const uint64_t bound = least_of(summary, link);
    if (moved == 0 && bound == 0) continue;
    const double step = per_step(summary, moved);
    table.add(
        {std::string(link.name), format_bytes(moved), format_bytes(static_cast<uint64_t>(step)),
         format_bytes(bound),
         bound > 0 && summary.steps > 0 ? fmt::format("{:.3f}", step / static_cast<double>(bound)) : "-"});
  }
  return table.text();
}

std::string path_table(const RunSummary& summary) {
  TextTable table({"nvme path", "read and written", "busy", "rate"});
  for (const NvmePathUse& path : summary.paths) {
    table.add(
        {path.path, format_bytes(path.bytes), seconds_text(seconds(path.busy_ns)),
         fmt::format("{:.2f} GB/s", per(static_cast<double>(path.bytes) * 1e-9, seconds(path.busy_ns)))});
  }
  return table.text();
}

void write_paths(JsonWriter& json, const RunSummary& summary) {
  json.list("paths", summary.paths, [&](const NvmePathUse& path) {
    json.begin_object().members({{"path", path.path}, {"bytes", path.bytes}});
    json.member("busy_seconds", seconds(path.busy_ns));
    json.member("bytes_per_second", per(static_cast<double>(path.bytes), seconds(path.busy_ns))).end();
  });
}

void add_time(TextTable& table, const RunSummary& summary, std::string_view name, uint64_t ns) {
  table.add({std::string(name), seconds_text(seconds(ns)), seconds_text(per_step(summary, ns) * 1e-9),
             percent_text(seconds(ns), seconds(summary.total_ns))});
}

// Every nanosecond counts in one row.
std::string time_table(const RunSummary& summary) {
  TextTable table({"time", "total", "per step", "share"});
  for (const TimeCause cause : kTimeCauses) {
    const uint64_t ns = summary.moved.time[cause];
    if (cause != TimeCause::ranks || ns > 0) add_time(table, summary, name_of(cause), ns);
  }
  add_time(table, summary, "all steps", summary.total_ns);
  return table.text() + resource_text(resource_use(summary.moved)) + "\n";
}

// The rows are phases of the same time and waits within it, so they overlap.
std::string phase_table(const RunSummary& summary) {
  TextTable table({"of it", "total", "per step", "share"});
  add_time(table, summary, "forward and backward", summary.forward_backward_ns);
  add_time(table, summary, "the end of the step", summary.update_ns);
  if (summary.keeping_ns > 0) add_time(table, summary, "keeping the state", summary.keeping_ns);
  for (const CounterEntry& wait : kWaits) {
    if (summary.moved.*wait.value > 0) add_time(table, summary, wait.name, summary.moved.*wait.value);
  }
  return table.text();
}

std::string losses_text(const RunSummary& summary) {
  std::string text;
  if (summary.steps > 0)
    text = fmt::format("training loss of step {}: {} nats per token\n", summary.completed_steps,
                       loss_text(summary.last_loss));
  if (!summary.validation_loss)
    return text +
           fmt::format("held-out loss not computed; unigram loss of the data {:.4f}\n", summary.unigram_loss);
  const double gain = summary.unigram_loss - *summary.validation_loss;
  return text + fmt::format(
                    "held-out loss of step {}: {}, perplexity {:.4g}; {} {} the unigram loss "
                    "of the data\n",
                    summary.validation_step, loss_text(*summary.validation_loss),
                    std::exp(*summary.validation_loss), loss_text(gain < 0 ? -gain : gain),
                    gain < 0 ? "above" : "below");
}

// Says where the state is, and which command goes on from it.
std::string state_text(const RunSummary& summary) {
  std::string text;
  if (summary.commit_step)
    text += fmt::format("commit of step {0} in {1} (`terrace checkpoint ls {1}` lists it)\n",
                        *summary.commit_step, summary.nvme_paths);
  if (!summary.checkpoint.empty()) {
    const std::string folder = std::filesystem::path(summary.checkpoint).parent_path().string();
    text +=
        fmt::format("checkpoint {}\nexport it with: terrace export {} --out FOLDER{}\n", summary.checkpoint,
                    folder, summary.tokenizer.empty() ? "" : " --tokenizer " + summary.tokenizer);
  } else if (!summary.commit_step) {
    return text + (summary.steps == 0
                       ? "nothing was saved: this run did no step\n"
                       : "nothing was saved: --save FOLDER keeps the weights that are trained\n");
  }
  const bool is_done = summary.completed_steps >= summary.planned_steps;
  return text +
         fmt::format("go on with: the same command, --resume auto{}\n", is_done ? " and more --steps" : "");
}

std::string commits_text(const RunSummary& summary) {
  if (!summary.keeps_commits) return "";
  const OffloadCounters& done = summary.commits;
  return fmt::format("{}: {} of resident states and {} of manifests written\n",
                     counted(done.commit_count, "commit"), format_bytes(done.commit_write_bytes),
                     format_bytes(done.manifest_bytes));
}

void write_commits(JsonWriter& json, const RunSummary& summary) {
  if (!summary.keeps_commits) {
    json.member("commits", nullptr);
    return;
  }
  const OffloadCounters& done = summary.commits;
  json.begin_object("commits").members({{"step", summary.commit_step}, {"paths", summary.nvme_paths}});
  json.members({{"count", done.commit_count}, {"write_bytes", done.commit_write_bytes}});
  json.member("manifest_bytes", done.manifest_bytes);
  json.member("keeping_seconds", seconds(summary.keeping_ns)).end();
}

void write_time(JsonWriter& json, const RunSummary& summary) {
  const double total = seconds(summary.total_ns);
  json.begin_object("time").member("seconds", total);
  json.member("forward_backward_seconds", seconds(summary.forward_backward_ns));
  json.member("update_seconds", seconds(summary.update_ns));
  for (const CounterEntry& wait : kWaits) {
    const double waited = seconds(summary.moved.*wait.value);
    json.member(fmt::format("{}_seconds", wait.key), waited);
    json.member(fmt::format("{}_share", wait.key), per(waited, total));
  }
  write_time_parts(json, "parts_ns", summary.moved.time);
  json.end();
}

void write_tiers(JsonWriter& json, const RunSummary& summary) {
  json.begin_list("tiers", JsonLayout::lines);
  for (const TierSummary& tier : summary.tiers) {
    json.begin_object().member("tier", tier.name);
    json.member("budget_bytes", tier.budget_bytes > 0 ? JsonValue(tier.budget_bytes) : nullptr);
    json.members({{"budget_origin", tier.origin}, {"planned_bytes", tier.planned_bytes}});
    json.member("peak_bytes", tier.peak_bytes);
    write_uses(json, tier.uses);
    json.end();
  }
  json.end();
}

void write_links(JsonWriter& json, const RunSummary& summary) {
  json.begin_list("links", JsonLayout::lines);
  for (const CounterEntry& link : kLinks) {
    const uint64_t bound = least_of(summary, link);
    const double step = per_step(summary, summary.moved.*link.value);
    const bool has_ratio = bound > 0 && summary.steps > 0;
    json.begin_object().members({{"link", link.key}, {"bytes", summary.moved.*link.value}});
    json.members({{"bytes_per_step", step}, {"least_bytes_per_step", bound}});
    json.member("ratio", has_ratio ? JsonValue(step / static_cast<double>(bound)) : nullptr).end();
  }
  json.end();
}

}  // namespace

void RunSummary::step_done(const StepReport& report) {
  ++steps;
  if (steps == 1) process_bytes = current_memory_use().pss_bytes;
  least.add(report.update_mode);
  predicted.add(report);
  tokens += report.tokens;
  skipped_steps += report.skipped ? 1 : 0;
  last_loss = report.loss;
  total_ns += report.total_ns;
  forward_backward_ns += report.forward_backward_ns;
  update_ns += report.update_ns;
  keeping_ns += report.keeping_ns;
  moved = moved + report.moved;
}

void RunSummary::update_finished(const FinishedUpdate& last) {
  total_ns += last.ns;
  update_ns += last.ns;
  moved = moved + last.moved;
}

void RunSummary::evaluated(uint64_t step, double loss) {
  validation_loss = loss;
  validation_step = step;
  least.add_evaluation();
}

void RunSummary::state_kept(const KeptState& kept) {
  if (kept.commit_step) commit_step = kept.commit_step;
  if (kept.checkpoint) checkpoint = kept.checkpoint->folder.string();
}

void RunSummary::ended(const RunEnd& end) {
  completed_steps = end.step;
  stopped_by = end.stopped_by;
}

void add_run(RunSummary& summary, const TrainerOptions& options, const TrainerPlan& plan,
             std::string tokenizer) {
  summary.tokenizer = std::move(tokenizer);
  summary.parameter_count = plan.parameter_count;
  summary.planned_steps = options.steps;
  for (const std::filesystem::path& path : tier_paths(options.config.placement))
    summary.nvme_paths += (summary.nvme_paths.empty() ? "" : " ") + path.string();
}

void add_memory(RunSummary& summary, Trainer& trainer, const TrainerPlan& plan) {
  summary.model = trainer.model_description();
  // The bound is that of the budget at the beginning, so it is left out if the budget has changed.
  if (!trainer.offloader().budget().has_changed())
    summary.bound = summary.least.per_step(trainer.offloader());
  std::vector<TierUse> host_uses;
  for (const TierUse& use : trainer.offloader().budget().ledger()) {
    const auto known = std::find_if(host_uses.begin(), host_uses.end(),
                                    [&](const TierUse& other) { return other.purpose == use.purpose; });
    if (known == host_uses.end()) {
      host_uses.push_back(use);
    } else {
      known->bytes += use.bytes;
    }
  }
  const uint64_t taken = trainer.offloader().report().tier_file_bytes();
  summary.tiers = {{"device", plan.device.bytes, plan.device.origin, plan.memory.device_bytes,
                    trainer.device().peak_bytes(), trainer.device_ledger()},
                   {"host", plan.host.bytes, plan.host.origin, plan.memory.host_bytes,
                    trainer.offloader().budget().peak_bytes(), host_uses}};
  if (taken > 0) {
    const uint64_t needed = plan.memory.file_bytes();
    uint64_t planned = 0;
    for (const PathShare& share : plan.disk) planned += share.bytes;
    summary.tiers.push_back({"nvme",
                             0,
                             "what is free on the path",
                             planned,
                             taken,
                             {{"parameters", plan.memory.parameter_file_bytes},
                              {"states", plan.memory.record_file_bytes},
                              {"gradients", plan.memory.gradient_file_bytes},
                              {"activation checkpoints", plan.memory.activation_file_bytes},
                              {"head-room of several paths", planned - std::min(planned, needed)}}});
  }
  summary.keeps_commits = plan.memory.keeps_commits;
  summary.commits = trainer.offloader().report().counters();
  summary.paths = trainer.offloader().report().nvme_paths();
  summary.process_bytes = std::max(summary.process_bytes, current_memory_use().pss_bytes);
}

namespace {

std::string detail_text(const RunSummary& summary) {
  std::string text = commits_text(summary);
  if (summary.steps == 0) return text;
  const std::string links = link_table(summary);
  if (std::count(links.begin(), links.end(), '\n') > 1) text += "\n" + links;
  if (!summary.paths.empty()) text += "\n" + path_table(summary);
  text += "\n" + time_table(summary) + "\n" + phase_table(summary);
  const std::string planned = summary.predicted.text(summary.tiers);
  if (!planned.empty()) text += "\n" + planned;
  return text + fmt::format("\n{} chunk fetches, {} of them on demand; {} evictions\n",
                            grouped(summary.moved.fetch_count), grouped(summary.moved.demand_fetch_count),
                            grouped(summary.moved.eviction_count));
}

std::string steps_text(const RunSummary& summary) {
  if (summary.completed_steps > summary.planned_steps || (summary.steps == 0 && summary.stopped_by.empty())) {
    return fmt::format("the checkpoint is of step {}, and --steps {} asks for no more: nothing was trained\n",
                       summary.completed_steps, summary.planned_steps);
  }
  const double total = seconds(summary.total_ns);
  std::string text =
      fmt::format("{} of {} steps done, {} in this run: {} tokens in {}, {:.1f} tokens/s\n",
                  summary.completed_steps, summary.planned_steps, summary.steps, grouped(summary.tokens),
                  seconds_text(total), per(static_cast<double>(summary.tokens), total));
  if (summary.skipped_steps > 0)
    text += fmt::format("{} of them overflowed in fp16 and were skipped\n", grouped(summary.skipped_steps));
  return text;
}

}  // namespace

// The result comes last.
std::string summary_text(const RunSummary& summary, bool verbose) {
  std::string text = memory_table(summary);
  if (verbose) {
    text += detail_text(summary);
  } else if (summary.steps > 0) {
    text += resource_text(resource_use(summary.moved)) + "\n";
  }
  return text + "\n" + steps_text(summary) + losses_text(summary) + state_text(summary);
}

std::string summary_json(const RunSummary& summary) {
  const double total = seconds(summary.total_ns);
  JsonWriter json;
  json.begin_object(JsonLayout::lines).members({{"version", TERRACE_VERSION}, {"model", summary.model}});
  json.members({{"parameters", summary.parameter_count}, {"planned_steps", summary.planned_steps}});
  json.member("completed_steps", summary.completed_steps);
  json.member("stopped_by", json_text_or_null(summary.stopped_by));
  json.members({{"validation_loss", summary.validation_loss}, {"unigram_loss", summary.unigram_loss}});
  json.member("last_training_loss", summary.steps > 0 ? JsonValue(summary.last_loss) : nullptr);
  json.member("checkpoint", json_text_or_null(summary.checkpoint));
  write_commits(json, summary);
  summary.predicted.write(json);
  json.members({{"steps", summary.steps}, {"skipped_steps", summary.skipped_steps}});
  json.member("tokens", summary.tokens);
  json.member("steps_per_second", per(static_cast<double>(summary.steps), total));
  json.member("tokens_per_second", per(static_cast<double>(summary.tokens), total));
  write_time(json, summary);
  json.member("bound_by", key_of(resource_use(summary.moved).binding));
  json.member("fetches", summary.moved.fetch_count);
  json.member("demand_fetches", summary.moved.demand_fetch_count);
  json.member("evictions", summary.moved.eviction_count);
  write_tiers(json, summary);
  write_links(json, summary);
  write_paths(json, summary);
  return json.member("process_pss_bytes", summary.process_bytes).end().take() + "\n";
}

}  // namespace terrace
