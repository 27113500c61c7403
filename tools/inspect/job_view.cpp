#include "inspect/job_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

#include "text_table.h"

namespace terrace {
namespace {

constexpr uint64_t kBarCells = 20;

// A model of any kind may have no tokens.
std::string rate_text(const JobStatus& status) {
  if (status.tokens > 0)
    return grouped(static_cast<unsigned long long>(status.tokens_per_second())) + " tokens/s";
  return fmt::format("{:.3g} steps/s", 1e9 / static_cast<double>(status.step_ns));
}

std::string step_line(const JobStatus& status) {
  std::string line = fmt::format("step {} of {}", status.step, status.steps);
  if (status.step_ns == 0) return line + "  this run has finished no step yet\n";
  return line + fmt::format("  loss {}  lr {:.3g}  {}  {} a step  update {}\n",
                            status.loss ? fmt::format("{:.4f}", *status.loss) : "not finite",
                            status.learning_rate, rate_text(status), format_duration(status.step_ns),
                            status.update_mode);
}

// "[#####---------------]  25 %"; of what has no budget, "disk" or nothing.
std::string occupancy_bar(const TierSummary& tier) {
  if (tier.budget_bytes == 0) return tier.name == "nvme" ? "disk" : "";
  const double share =
      std::min(1.0, static_cast<double>(tier.used_bytes) / static_cast<double>(tier.budget_bytes));
  const auto cells = static_cast<uint64_t>(share * static_cast<double>(kBarCells) + 0.5);
  return fmt::format("[{}{}] {:>3.0f} %", std::string(cells, '#'), std::string(kBarCells - cells, '-'),
                     100 * share);
}

std::string tier_lines(const JobStatus& status) {
  std::string lines;
  for (const TierSummary& tier : status.tiers) {
    const std::string budget = tier.budget_bytes > 0 ? " of " + format_bytes(tier.budget_bytes) : "";
    lines += fmt::format("{:<7} {:<28} {}{}, at most {}\n", tier.name, occupancy_bar(tier),
                         format_bytes(tier.used_bytes), budget, format_bytes(tier.peak_bytes));
  }
  return lines;
}

std::string states_line(const JobStatus& status) {
  if (status.record_chunks == 0) return "";
  return fmt::format(
      "states  {} of {} chunks of optimizer states stay in host memory ({}); its budget may be set from {} "
      "to "
      "{}\n",
      status.kept_chunks, status.record_chunks, percent_text(status.kept_chunks, status.record_chunks),
      format_bytes(status.least_host_bytes), format_bytes(status.most_host_bytes));
}

// Returns the name of a counter, or its key if another version of the program has a counter that this one
// lacks.
template <typename Entries>
std::string name_in(const Entries& entries, const std::string& key) {
  for (const CounterEntry& entry : entries) {
    if (key == entry.key) return std::string(entry.name);
  }
  return key;
}

// Returns the name of a wait without its first word, because the line begins with "waited" already.
std::string wait_name(const std::string& key) {
  constexpr std::string_view kWaiting = "waiting ";
  const std::string name = name_in(kWaits, key);
  return name.starts_with(kWaiting) ? name.substr(kWaiting.size()) : name;
}

// Lists the items that are not 0.
std::string list_line(const char* name, const NamedAmounts& amounts,
                      FunctionRef<std::string(const NamedAmount&)> text) {
  std::string line;
  for (const NamedAmount& item : amounts.items) {
    if (item.amount > 0) line += (line.empty() ? "" : "; ") + text(item);
  }
  return fmt::format("{:<7} {}\n", name, line.empty() ? "none" : line);
}

// Returns the key for a resource that only another version of the program knows.
std::string bound_text(const JobStatus& status) {
  for (const Resource resource : {Resource::processor, Resource::host_to_device, Resource::device_to_host,
                                  Resource::disk_reads, Resource::disk_writes}) {
    if (status.bound_by == key_of(resource)) return fmt::format("by {}", name_of(resource));
  }
  return status.bound_by;
}

std::string kept_line(const JobStatus& status) {
  std::string line;
  if (status.commit_step) line += fmt::format("commit of step {}", *status.commit_step);
  if (status.checkpoint_step)
    line += fmt::format("{}checkpoint of step {}", line.empty() ? "" : ", ", *status.checkpoint_step);
  return fmt::format("{:<7} {}\n", "saved", line.empty() ? "nothing yet" : line);
}

// Who says nothing for so long, though it should each second, is stopped or cut off.
constexpr uint64_t kSilentMs = 3500;

std::string place_text(const RankStatus& rank) {
  std::string at = rank.operation.empty() ? "between operations" : shown_line(rank.operation);
  if (rank.waits_for_ranks) at += ", waits for ranks";
  return at;
}

// "waited" is the share of a rank's last step. TextTable would have words on the right.
std::string rank_lines(const JobStatus& status) {
  if (status.rank_count <= 1) return "";
  std::string text = fmt::format("ranks   {}", status.rank_count);
  if (status.ranks.empty()) return text + ", which cannot watch each other\n";
  if (status.ranks.size() < status.rank_count)
    text += fmt::format(", {} of them: silent ones first, those that wait last", status.ranks.size());
  text += "\n";
  size_t width = 4;
  for (const RankStatus& rank : status.ranks) width = std::max(width, shown_line(rank.host).size());
  text += fmt::format("  {:>5}  {:<{}}  {:>8}  {:>8}  {:>7}  {:>7}  {}\n", "rank", "host", width, "process",
                      "step", "waited", "silent", "at");
  for (const RankStatus& rank : status.ranks) {
    text += fmt::format(
        "  {:>5}  {:<{}}  {:>8}  {:>8}  {:>7}  {:>7}  {}\n", rank.rank, shown_line(rank.host), width,
        rank.process, rank.step,
        percent_text(static_cast<double>(rank.rank_wait_ns), static_cast<double>(rank.step_ns)),
        rank.silent_ms > kSilentMs ? fmt::format("{} s", rank.silent_ms / 1000) : "", place_text(rank));
  }
  return text;
}

}  // namespace

std::string job_view(const JobStatus& status) {
  std::string text = fmt::format("job {}  {}\n", status.pid, shown_line(status.model));
  text += step_line(status) + tier_lines(status) + states_line(status);
  text += list_line("moved", status.links, [](const NamedAmount& link) {
    return name_in(kLinks, link.name) + " " + format_bytes(link.amount);
  });
  text += list_line("waited", status.waits, [](const NamedAmount& wait) {
    return wait_name(wait.name) + " " + format_duration(wait.amount);
  });
  text += fmt::format("{:<7} {}\n", "bound", bound_text(status));
  const std::string doing = status.waits_for.empty() ? "computing" : status.waits_for;
  text += fmt::format("{:<7} {}\n", "now", status.at.empty() ? doing : status.at + ": " + doing);
  return text + kept_line(status) + rank_lines(status);
}

}  // namespace terrace
