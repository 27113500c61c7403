#include <terrace/runtime/observe/control/job_status.h>

#include <algorithm>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

[[noreturn]] void refuse(std::string_view key) {
  throw Error(ErrorKind::io, {"cannot understand the job's status", std::string(key),
                              "it is missing or of another type", "use the program of the job's version"});
}

// The members that a status has of several ranks only.
struct ShownRanks {
  uint32_t rank_count = 1;
  std::vector<RankStatus> ranks;
};
constexpr auto json_fields(const ShownRanks&) {
  return std::tuple(later_json_field("rank_count", &ShownRanks::rank_count),
                    later_json_field("ranks", &ShownRanks::ranks));
}

template <typename T>
void read_or_refuse(const JsonNode& node, T& value) {
  if (const std::optional<std::string> wrong = read_fields(node, value)) refuse(*wrong);
}

}  // namespace

uint64_t json_whole_number(const JsonNode& object, std::string_view key) {
  const JsonNode* node = object.find(key);
  if (node == nullptr || !node->is(JsonNode::Kind::number)) return 0;
  const std::optional<uint64_t> value = node->whole_number();
  if (!value) refuse(key);
  return *value;
}

void write_json(JsonWriter& json, const NamedAmounts& amounts) {
  json.begin_object();
  for (const NamedAmount& one : amounts.items) json.member(one.name, one.amount);
  json.end();
}

bool read_json(const JsonNode& node, NamedAmounts& amounts) {
  amounts.items.clear();
  for (const JsonMember& member : node.members) {
    if (!read_json(member.value, amounts.items.emplace_back(NamedAmount{member.key}).amount)) return false;
  }
  return node.is(JsonNode::Kind::object);
}

void set_last_step(JobStatus& status, const StepReport& report) {
  status.step = report.step;
  status.loss = report.loss;
  status.learning_rate = report.learning_rate;
  status.tokens = report.tokens;
  status.step_ns = report.total_ns;
  status.update_mode = name_of(report.update_mode);
  const auto set = [&](NamedAmounts& amounts, const auto& entries) {
    amounts.items.resize(entries.size());
    for (size_t i = 0; i < entries.size(); ++i)
      amounts.items[i] = {std::string(entries[i].key), report.moved.*entries[i].value};
  };
  set(status.links, kLinks);
  set(status.waits, kWaits);
  status.bound_by = key_of(resource_use(report.moved).binding);
}

void set_memory(JobStatus& status, const JobMemory& memory) {
  Offloader& offloader = memory.offloader;
  const MemoryPlan& plan = offloader.plan();
  status.tiers = tiers_of(memory);
  status.least_host_bytes = offloader.budget().least();
  status.most_host_bytes = plan.host_bytes;
  status.kept_chunks = offloader.budget().resident_chunks();
  status.record_chunks = plan.device_record_slots > 0 ? 0 : plan.record_chunks;
}

std::string job_status_json(const JobStatus& status) {
  JsonWriter json;
  write_fields(json.begin_object(), status);
  json.member("seconds", static_cast<double>(status.step_ns) * 1e-9);
  json.member("tokens_per_second", status.tokens_per_second());
  if (status.rank_count > 1) write_fields(json, ShownRanks{status.rank_count, status.ranks});
  return json.end().take();
}

JobStatus parse_job_status(const JsonNode& node) {
  JobStatus status;
  read_or_refuse(node, status);
  // A job of an earlier Terrace says "epoch_step".
  if (const JsonNode* const former = node.find("epoch_step"); former != nullptr)
    read_json(*former, status.commit_step);
  ShownRanks shown;
  read_or_refuse(node, shown);
  status.rank_count = shown.rank_count;
  status.ranks = std::move(shown.ranks);
  return status;
}

}  // namespace terrace
