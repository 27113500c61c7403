#include <terrace/runtime/observe/control/job_status.h>

#include <algorithm>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

// So that an answer has room for all ranks that are shown.
constexpr size_t kLongestOperation = 120;

[[noreturn]] void refuse(std::string_view key) {
  throw Error(ErrorKind::io, {"cannot understand the job's status", std::string(key),
                              "it is missing or of another type", "use the program of the job's version"});
}

const JsonNode& require(const JsonNode& object, std::string_view key, JsonNode::Kind kind) {
  const JsonNode* node = object.find(key);
  if (node == nullptr || !node->is(kind)) refuse(key);
  return *node;
}

uint64_t whole(const JsonNode& object, std::string_view key) {
  require(object, key, JsonNode::Kind::number);
  return json_whole_number(object, key);
}

std::optional<uint64_t> optional_whole(const JsonNode& object, std::string_view key) {
  const JsonNode* node = object.find(key);
  if (node == nullptr || !node->is(JsonNode::Kind::number)) return std::nullopt;
  return whole(object, key);
}

std::string text(const JsonNode& object, std::string_view key) {
  return require(object, key, JsonNode::Kind::text).text;
}

template <typename Item>
void write_members(JsonWriter& json, std::string_view key, const std::vector<Item>& items,
                   uint64_t Item::*value) {
  json.begin_object(key);
  for (const Item& item : items) json.member(item.name, item.*value);
  json.end();
}

void write_ranks(JsonWriter& json, const JobStatus& status) {
  json.member("rank_count", status.rank_count);
  json.list("ranks", status.ranks, [&](const RankStatus& rank) {
    json.begin_object().members({{"rank", rank.rank}, {"host", rank.host}, {"process", rank.process}});
    json.members({{"step", rank.step}, {"silent_ms", rank.silent_ms}, {"step_ns", rank.step_ns}});
    json.members({{"rank_wait_ns", rank.rank_wait_ns}, {"waits_for_ranks", rank.waits_for_ranks}});
    json.member("operation", json_raw(json_quoted(rank.operation, kLongestOperation))).end();
  });
}

// A job of one rank, or of an earlier Terrace, says nothing of them.
void parse_ranks(const JsonNode& node, JobStatus& status) {
  const JsonNode* const ranks = node.find("ranks");
  if (ranks == nullptr || !ranks->is(JsonNode::Kind::list)) return;
  status.rank_count = static_cast<uint32_t>(whole(node, "rank_count"));
  for (const JsonNode& rank : ranks->items) {
    const JsonNode& waits = require(rank, "waits_for_ranks", JsonNode::Kind::boolean);
    status.ranks.push_back({static_cast<uint32_t>(whole(rank, "rank")), text(rank, "host"),
                            whole(rank, "process"), whole(rank, "step"), whole(rank, "silent_ms"),
                            whole(rank, "step_ns"), whole(rank, "rank_wait_ns"), waits.boolean,
                            text(rank, "operation")});
  }
}

template <typename Item>
std::vector<Item> parse_members(const JsonNode& object) {
  std::vector<Item> items;
  for (const JsonMember& member : object.members) items.push_back({member.key, whole(object, member.key)});
  return items;
}

}  // namespace

uint64_t json_whole_number(const JsonNode& object, std::string_view key) {
  const JsonNode* node = object.find(key);
  if (node == nullptr || !node->is(JsonNode::Kind::number)) return 0;
  const std::optional<uint64_t> value = node->whole_number();
  if (!value) refuse(key);
  return *value;
}

void set_last_step(JobStatus& status, const StepReport& report) {
  status.step = report.step;
  status.loss = report.loss;
  status.learning_rate = report.learning_rate;
  status.tokens = report.tokens;
  status.step_ns = report.total_ns;
  status.update_mode = name_of(report.update_mode);
  status.links.resize(kLinks.size());
  for (size_t i = 0; i < kLinks.size(); ++i)
    status.links[i] = {std::string(kLinks[i].key), report.moved.*kLinks[i].value};
  status.waits.resize(kWaits.size());
  for (size_t i = 0; i < kWaits.size(); ++i)
    status.waits[i] = {std::string(kWaits[i].key), report.moved.*kWaits[i].value};
  status.bound_by = key_of(resource_use(report.moved).binding);
}

void set_memory(JobStatus& status, const JobMemory& memory) {
  Offloader& offloader = memory.offloader;
  const MemoryPlan& plan = offloader.plan();
  uint64_t host_bytes = 0;
  for (const TierUse& use : offloader.budget().ledger()) host_bytes += use.bytes;
  const uint64_t file_bytes = offloader.report().tier_file_bytes();
  const size_t tiers = file_bytes > 0 ? 3 : 2;
  status.tiers.resize(tiers);
  const auto peak = [&](size_t tier, uint64_t bytes) {
    return std::max(status.tiers[tier].peak_bytes, bytes);
  };
  const uint64_t device_peak = memory.device.peak_bytes();
  status.tiers[0] = {"device", memory.device_budget_bytes, device_peak, device_peak};
  status.tiers[1] = {"host", offloader.budget().in_force(), host_bytes, peak(1, host_bytes)};
  if (file_bytes > 0) status.tiers[2] = {"nvme", 0, file_bytes, peak(2, file_bytes)};
  status.least_host_bytes = offloader.budget().least();
  status.most_host_bytes = plan.host_bytes;
  status.kept_chunks = offloader.budget().resident_chunks();
  status.record_chunks = plan.device_record_slots > 0 ? 0 : plan.record_chunks;
}

std::string job_status_json(const JobStatus& status) {
  JsonWriter json;
  json.begin_object().members({{"pid", status.pid}, {"model", status.model}, {"step", status.step}});
  json.members({{"steps", status.steps}, {"loss", status.loss}, {"lr", status.learning_rate}});
  json.members({{"tokens", status.tokens}, {"step_ns", status.step_ns}});
  json.member("seconds", static_cast<double>(status.step_ns) * 1e-9);
  json.member("tokens_per_second", status.tokens_per_second()).member("update_mode", status.update_mode);
  json.list("tiers", status.tiers, [&](const TierStatus& tier) {
    json.begin_object().members({{"name", tier.name}, {"budget_bytes", tier.budget_bytes}});
    json.members({{"used_bytes", tier.used_bytes}, {"peak_bytes", tier.peak_bytes}}).end();
  });
  json.member("least_host_bytes", status.least_host_bytes);
  json.member("most_host_bytes", status.most_host_bytes);
  json.members({{"kept_chunks", status.kept_chunks}, {"record_chunks", status.record_chunks}});
  write_members(json, "link_bytes", status.links, &LinkBytes::bytes);
  write_members(json, "wait_ns", status.waits, &WaitTime::ns);
  json.members({{"bound_by", status.bound_by}, {"commit_step", status.commit_step}});
  json.members({{"checkpoint_step", status.checkpoint_step}, {"at", status.at}});
  json.member("waits_for", status.waits_for);
  if (status.rank_count > 1) write_ranks(json, status);
  return json.end().take();
}

JobStatus parse_job_status(const JsonNode& node) {
  if (!node.is(JsonNode::Kind::object)) refuse("status");
  JobStatus status;
  status.pid = whole(node, "pid");
  status.model = text(node, "model");
  status.step = whole(node, "step");
  status.steps = whole(node, "steps");
  const JsonNode* loss = node.find("loss");
  if (loss != nullptr && loss->is(JsonNode::Kind::number)) status.loss = loss->number;
  const JsonNode* rate = node.find("lr");
  if (rate != nullptr && rate->is(JsonNode::Kind::number)) status.learning_rate = rate->number;
  status.tokens = whole(node, "tokens");
  status.step_ns = whole(node, "step_ns");
  status.update_mode = text(node, "update_mode");
  for (const JsonNode& tier : require(node, "tiers", JsonNode::Kind::list).items) {
    status.tiers.push_back({text(tier, "name"), whole(tier, "budget_bytes"), whole(tier, "used_bytes"),
                            whole(tier, "peak_bytes")});
  }
  status.least_host_bytes = whole(node, "least_host_bytes");
  status.most_host_bytes = whole(node, "most_host_bytes");
  status.kept_chunks = static_cast<uint32_t>(whole(node, "kept_chunks"));
  status.record_chunks = static_cast<uint32_t>(whole(node, "record_chunks"));
  status.links = parse_members<LinkBytes>(require(node, "link_bytes", JsonNode::Kind::object));
  status.waits = parse_members<WaitTime>(require(node, "wait_ns", JsonNode::Kind::object));
  status.bound_by = text(node, "bound_by");
  // A job of an earlier Terrace says "epoch_step".
  status.commit_step = optional_whole(node, node.find("commit_step") ? "commit_step" : "epoch_step");
  status.checkpoint_step = optional_whole(node, "checkpoint_step");
  if (node.find("at") != nullptr)
    status.at = text(node, "at");  // a job of an earlier Terrace does not say it
  status.waits_for = text(node, "waits_for");
  parse_ranks(node, status);
  return status;
}

}  // namespace terrace
