#include "inspect/rank_outlook.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/quantization.h>

#include "text_table.h"

namespace terrace {
namespace {

// Of normals: below a second.
constexpr double kMostDraws = 1e7;

using Term = std::pair<double, std::string_view>;  // seconds of a step, and what takes them

// Of what ranks exchange the longest term.
Term longest(const RankTerms& ranks) {
  return std::max({Term(ranks.host_latency, "messages within a host"),
                   Term(ranks.host_bytes, "bytes within a host"),
                   Term(ranks.network_latency, "messages between hosts"),
                   Term(ranks.network_bytes, "bytes between hosts")});
}

// What is busy longest in a step; where that is what ranks exchange, its longest term.
std::string_view ruling_term(const PlanPrediction& prediction) {
  const ResourceUse use = prediction.use();
  const RankTerms& ranks = prediction.ranks.seconds;
  const auto seconds = [](uint64_t ns) { return 1e-9 * static_cast<double>(ns); };
  return std::max({Term(seconds(std::max(use.processor_ns, use.device_ns)), "computing"),
                   Term(seconds(use.disk_ns), "drives"),
                   Term(seconds(std::max(use.h2d_ns, use.d2h_ns)), "copies to and from the device"),
                   Term(ranks.total(), longest(ranks).second)})
      .second;
}

void add_terms(const TrainConfig& config, const TrainingSetup& setup, const PlanPrediction& prediction,
               RankOutlook& outlook) {
  const RankLinks& links = prediction.links;
  const StepRounds rounds = config.batch.rounds();
  const auto crossing = [&](DataType type, uint32_t bits) {
    return static_cast<double>(crossing_bytes(setup.plan.chunk_elements, type, bits));
  };
  outlook.has_terms = true;
  outlook.chunk_bytes = crossing(config.precision, 0);
  const GatherShape chunk = {outlook.chunk_bytes, crossing(config.precision, setup.offload.parameter_bits)};
  const ExchangeShape shape = {outlook.chunk_bytes,
                               crossing(setup.offload.accumulation_type, rounds.gradient_bits),
                               rounds.sums_on_hosts() ? rounds.groups_per_host() : 0};
  for (const auto& [terms, spreading] :
       {std::pair(&outlook.direct, Spreading::direct), {&outlook.doubling, Spreading::doubling}})
    *terms = {gather_terms(links, chunk, spreading), exchange_terms(links, shape, spreading)};
  outlook.step = prediction.ranks.seconds;
  outlook.ruling = ruling_term(prediction);
  outlook.ruling_exchanges = longest(outlook.step).second;
}

Stragglers draw_stragglers(const TrainConfig& config, const PlanPrediction& prediction, double jitter) {
  Stragglers stragglers;
  stragglers.jitter = jitter;
  stragglers.seed = config.terrace.seed;
  const uint32_t ranks = config.batch.ranks;
  const uint32_t waits = prediction.ranks.gathers + prediction.ranks.exchanges;
  stragglers.waits = std::clamp(waits, 1u, std::max(1u, static_cast<uint32_t>(kMostDraws / ranks)));
  stragglers.drawn = 1 + jitter * greatest_normal_drawn(ranks, stragglers.waits, stragglers.seed);
  stragglers.at_most = 1 + jitter * greatest_normal_at_most(ranks);
  const double waited = 1e-9 * static_cast<double>(prediction.step.time[TimeCause::ranks]);
  stragglers.step_seconds = waited + (prediction.step_seconds - waited) * stragglers.drawn;
  return stragglers;
}

// A commit on nvme is written by each rank. Else a checkpoint is, by the first one, of all states.
double planned_commit_seconds(const TrainingSetup& setup, const PlanPrediction& prediction,
                              const MachineRates& rates) {
  if (rates.disk_write_bytes == 0)
    refuse_missing("--commit-time", "give it, or the rate of the drives with --disk-write",
                   "--mtbf needs it");
  const double record = static_cast<double>(setup.plan.memory.record_layout.tile_bytes()) / kTileElements;
  const double bytes = prediction.commit_write_bytes > 0
                           ? static_cast<double>(prediction.commit_write_bytes)
                           : static_cast<double>(setup.plan.trainable_count) * record;
  return bytes / rates.disk_write_bytes;
}

std::string span_text(double seconds) {
  if (seconds < 120) return format_duration(static_cast<uint64_t>(seconds * 1e9));
  if (seconds < 7200) return fmt::format("{:.3g} min", seconds / 60);
  return seconds < 2 * 86400 ? fmt::format("{:.3g} h", seconds / 3600)
                             : fmt::format("{:.3g} days", seconds / 86400);
}

std::string terms_text(const RankOutlook& outlook) {
  TextTable table({"ranks and their messages, ms", "in a host: messages", "bytes", "between hosts: messages",
                   "bytes", "in all", "by doubling"});
  const auto add = [&](const char* name, const RankTerms& terms, const std::string& doubling) {
    const auto ms = [](double seconds) { return fmt::format("{:.3f}", seconds * 1e3); };
    table.add({name, ms(terms.host_latency), ms(terms.host_bytes), ms(terms.network_latency),
               ms(terms.network_bytes), ms(terms.total()), doubling});
  };
  add("gather of a chunk", outlook.direct.gather,
      fmt::format("{:.3f}", outlook.doubling.gather.total() * 1e3));
  add("exchange of a chunk", outlook.direct.exchange,
      fmt::format("{:.3f}", outlook.doubling.exchange.total() * 1e3));
  add("all of a step", outlook.step, "");
  return table.text() + fmt::format("what rules a step: {}; of what ranks exchange: {}\n", outlook.ruling,
                                    outlook.ruling_exchanges);
}

std::string stragglers_text(const Stragglers& stragglers) {
  return fmt::format(
      "waiting for the slowest, of times that differ by {:g} %: {:.4f} times as long as drawn (seed {}, {} "
      "waits), at most {:.4f} "
      "by sigma sqrt(2 ln N); {:.3f} s a step\n",
      100 * stragglers.jitter, stragglers.drawn, stragglers.seed, grouped(stragglers.waits),
      stragglers.at_most, stragglers.step_seconds);
}

std::string faults_text(const Faults& faults) {
  const FaultPlan& plan = faults.plan;
  std::string text = fmt::format("{:.3g} failures a day; ", plan.failures_a_day);
  if (plan.lost() >= 1)
    return text +
           fmt::format("with commits of {} nothing is left of the time\n", span_text(faults.commit_seconds));
  return text + fmt::format(
                    "least is lost with a commit of {} every {}: {:.2f} % of the time, {:.2f} commits, "
                    "{:.2f} lost work, {:.2f} "
                    "restarts of {}\n",
                    span_text(faults.commit_seconds), span_text(plan.interval_seconds), 100 * plan.lost(),
                    100 * plan.commits, 100 * plan.lost_work, 100 * plan.restarts,
                    span_text(faults.restart_seconds));
}

void write_terms(JsonWriter& json, const char* name, const RankTerms& terms) {
  json.begin_object(name)
      .member("host_latency_seconds", terms.host_latency)
      .member("host_bytes_seconds", terms.host_bytes);
  json.member("network_latency_seconds", terms.network_latency)
      .member("network_bytes_seconds", terms.network_bytes);
  json.member("seconds", terms.total()).end();
}

}  // namespace

RankOutlook look_at_ranks(const TrainConfig& config, const TrainingSetup& setup,
                          const PlanPrediction& prediction, const MachineRates& rates,
                          const RankFlags& flags) {
  RankOutlook outlook;
  if (config.batch.ranks > 1 && knows_ranks(rates, config)) add_terms(config, setup, prediction, outlook);
  if (flags.jitter() > 0) outlook.stragglers = draw_stragglers(config, prediction, flags.jitter());
  if (flags.mtbf_seconds() > 0) {
    const double given = flags.commit_seconds();
    const double commit = given > 0 ? given : planned_commit_seconds(setup, prediction, rates);
    const double restart = flags.restart_seconds() >= 0 ? flags.restart_seconds() : commit;
    outlook.faults =
        Faults{plan_faults({config.batch.ranks, flags.mtbf_seconds(), commit, restart}), commit, restart};
  }
  return outlook;
}

std::string outlook_text(const RankOutlook& outlook) {
  std::string text;
  if (outlook.has_terms) text += terms_text(outlook);
  if (outlook.stragglers) text += stragglers_text(*outlook.stragglers);
  if (outlook.faults) text += faults_text(*outlook.faults);
  return text.empty() ? text : text + "\n";
}

void write_outlook(JsonWriter& json, const RankOutlook& outlook) {
  json.begin_object("ranks", JsonLayout::lines);
  if (outlook.has_terms) {
    json.member("chunk_bytes", outlook.chunk_bytes).member("ruling", outlook.ruling);
    json.member("ruling_exchanges", outlook.ruling_exchanges);
    write_terms(json, "gather", outlook.direct.gather);
    write_terms(json, "gather_by_doubling", outlook.doubling.gather);
    write_terms(json, "exchange", outlook.direct.exchange);
    write_terms(json, "exchange_by_doubling", outlook.doubling.exchange);
    write_terms(json, "step", outlook.step);
  }
  if (const auto& late = outlook.stragglers) {
    json.begin_object("stragglers")
        .member("jitter", late->jitter)
        .member("seed", late->seed)
        .member("waits", late->waits);
    json.member("drawn", late->drawn)
        .member("at_most", late->at_most)
        .member("step_seconds", late->step_seconds)
        .end();
  }
  if (const auto& faults = outlook.faults) {
    json.begin_object("faults").member("failures_a_day", faults->plan.failures_a_day);
    json.member("commit_seconds", faults->commit_seconds).member("restart_seconds", faults->restart_seconds);
    json.member("interval_seconds", faults->plan.interval_seconds).member("commits", faults->plan.commits);
    json.member("lost_work", faults->plan.lost_work)
        .member("restarts", faults->plan.restarts)
        .member("lost", faults->plan.lost())
        .end();
  }
  json.end();
}

}  // namespace terrace
