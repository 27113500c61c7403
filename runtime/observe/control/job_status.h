// JobStatus: the state of a running job for clients, and its form as JSON (docs/control.md). It is a copy: no
// reader can hold up a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/runtime/observe/run_memory.h>
#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

struct NamedAmount {
  std::string name;  // as in the log of steps: "h2d", "fetch_wait"
  uint64_t amount = 0;
};
// An object of JSON, with a member for each.
struct NamedAmounts {
  std::vector<NamedAmount> items;
};
void write_json(JsonWriter& json, const NamedAmounts& amounts);
bool read_json(const JsonNode& node, NamedAmounts& amounts);

// RankStatus: what a rank last said of itself.
struct RankStatus {
  uint32_t rank = 0;
  std::string host;
  uint64_t process = 0;
  uint64_t step = 0;          // in progress
  uint64_t silent_ms = 0;     // it has said nothing since
  uint64_t step_ns = 0;       // of its last step; 0 before the first
  uint64_t rank_wait_ns = 0;  // of these, waiting for other ranks
  bool waits_for_ranks = false;
  std::string operation;  // what its step thread is at
};
constexpr auto json_fields(const RankStatus&) {
  constexpr size_t kLongestOperation = 120;  // so that an answer has room for all ranks that are shown
  return std::tuple(json_field("rank", &RankStatus::rank), json_field("host", &RankStatus::host),
                    json_field("process", &RankStatus::process), json_field("step", &RankStatus::step),
                    json_field("silent_ms", &RankStatus::silent_ms),
                    json_field("step_ns", &RankStatus::step_ns),
                    json_field("rank_wait_ns", &RankStatus::rank_wait_ns),
                    json_field("waits_for_ranks", &RankStatus::waits_for_ranks),
                    json_field("operation", &RankStatus::operation, kLongestOperation));
}

struct JobStatus {
  uint64_t pid = 0;
  std::string model;
  uint64_t step = 0;   // completed steps of the whole run
  uint64_t steps = 0;  // steps of the whole run
  // The members down to bound_by describe the last step; without one, loss is empty.
  std::optional<double> loss;
  double learning_rate = 0;
  uint64_t tokens = 0;
  uint64_t step_ns = 0;
  std::string update_mode;
  NamedAmounts links;    // bytes
  NamedAmounts waits;    // nanoseconds
  std::string bound_by;  // the last step's, as in the log: "disk_reads"; "none" before the first

  std::vector<TierSummary> tiers;
  uint64_t least_host_bytes = 0;            // the lowest host budget allowed
  uint64_t most_host_bytes = 0;             // the highest host budget of use
  uint32_t kept_chunks = 0;                 // chunks whose states are resident: each saves a read and a write
  uint32_t record_chunks = 0;               // all chunks of states; 0 if they are on the device
  std::optional<uint64_t> commit_step;      // the last durable commit's
  std::optional<uint64_t> checkpoint_step;  // the step of this run's last complete checkpoint

  std::string at;         // where the step in progress is: "micro-batch 2 of 4, backward, layer 7 of 12"
  std::string waits_for;  // the present wait, in words; empty if the step thread does not wait

  uint32_t rank_count = 1;
  // In their order; none of one rank, and at most kMostShownRanks of many: those that say nothing first, and
  // those that wait for the others last.
  static constexpr size_t kMostShownRanks = 128;
  std::vector<RankStatus> ranks;

  double tokens_per_second() const {
    return step_ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(step_ns) : 0;
  }
};

// Of one rank; job_status_json() adds what follows from these, and the ranks where there are several.
constexpr auto json_fields(const JobStatus&) {
  using S = JobStatus;
  return std::tuple(
      json_field("pid", &S::pid), json_field("model", &S::model), json_field("step", &S::step),
      json_field("steps", &S::steps), json_field("loss", &S::loss), json_field("lr", &S::learning_rate),
      json_field("tokens", &S::tokens), json_field("step_ns", &S::step_ns),
      json_field("update_mode", &S::update_mode), json_field("tiers", &S::tiers),
      json_field("least_host_bytes", &S::least_host_bytes),
      json_field("most_host_bytes", &S::most_host_bytes), json_field("kept_chunks", &S::kept_chunks),
      json_field("record_chunks", &S::record_chunks), json_field("link_bytes", &S::links),
      json_field("wait_ns", &S::waits), json_field("bound_by", &S::bound_by),
      json_field("commit_step", &S::commit_step), json_field("checkpoint_step", &S::checkpoint_step),
      later_json_field("at", &S::at), json_field("waits_for", &S::waits_for));
}

// Sets the values of the last step; call between two steps.
void set_last_step(JobStatus& status, const StepReport& report);
// Sets the present budgets and their uses; call between two steps.
void set_memory(JobStatus& status, const JobMemory& memory);

// Returns a JSON object.
std::string job_status_json(const JobStatus& status);
// Reads an answer's member "status". Unknown members are ignored; throws Error(io) if one is missing or of
// another type.
JobStatus parse_job_status(const JsonNode& node);

// Returns a member of an object that is a whole number; 0 if there is none.
uint64_t json_whole_number(const JsonNode& object, std::string_view key);

}  // namespace terrace
