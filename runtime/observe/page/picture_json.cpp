#include <terrace/runtime/observe/page/picture_json.h>

#include <cmath>

#include <terrace/base/text/json_writer.h>

namespace terrace {
namespace {

// Shares in thousandths: a page shows no more of them.
void write_links(JsonWriter& json, const StepPicture& picture) {
  json.list("links", kTraceLinks, [&](TraceLink link) {
    const auto i = static_cast<size_t>(link);
    json.begin_object().member("key", key_of(link));
    json.members({{"bytes", picture.bytes[i]}, {"busy_ns", picture.busy_ns[i]}});
    json.list("shares", picture.busy_shares[i], [&](double share) { json.value(std::lround(1000 * share)); });
    json.end();
  });
}

void write_device(JsonWriter& json, const StepPicture& picture) {
  const TraceFacts& facts = picture.facts;
  const auto slots = [&](std::string_view key, uint32_t DeviceSample::*count) {
    json.list(key, picture.device, [&](const DeviceSample& sample) { json.value(sample.*count); });
  };
  json.begin_object("device").member("budget_bytes", facts.device_budget_bytes);
  json.members({{"other_bytes", facts.device_other_bytes}, {"slot_bytes", facts.device_slot_bytes}});
  slots("param", &DeviceSample::param_slots);
  slots("grad", &DeviceSample::grad_slots);
  slots("leaving", &DeviceSample::leaving_slots);
  json.end();
}

void write_host(JsonWriter& json, const StepPicture& picture) {
  json.begin_object("host").member("budget_bytes", picture.facts.host_budget_bytes);
  json.member("ring_slot_bytes", picture.facts.ring_slot_bytes);
  json.list("bytes", picture.host_bytes).list("ring", picture.ring_slots).end();
}

// A digit for each cell.
void write_chunks(JsonWriter& json, const StepPicture& picture) {
  json.begin_object("chunks").member("count", picture.facts.chunk_count);
  json.member("per_row", picture.chunks_per_row);
  json.list("rows", picture.rows, [&](const std::vector<ChunkPresence>& row) {
    std::string digits;
    for (const ChunkPresence presence : row) digits += static_cast<char>('0' + static_cast<char>(presence));
    json.value(json_raw('"' + digits + '"'));
  });
  json.end();
}

}  // namespace

std::string picture_json(const StepPicture& picture) {
  JsonWriter json({.dense = true});
  json.begin_object().members({{"step", picture.step}, {"length_ns", picture.length_ns}});
  json.members({{"parts", StepPicture::kParts}, {"left_out", picture.left_out}});
  json.list("phases", picture.phases, [&](const StepPhase& phase) {
    json.list({phase.name, phase.begin_ns, phase.end_ns});
  });
  write_links(json, picture);
  write_device(json, picture);
  write_host(json, picture);
  write_chunks(json, picture);
  return json.end().take();
}

}  // namespace terrace
