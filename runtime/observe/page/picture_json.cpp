#include <terrace/runtime/observe/page/internal/picture_json.h>

#include <cmath>

#include <terrace/runtime/observe/page/internal/json_parts.h>

namespace terrace {
namespace {

using page_json::list;

std::string whole(uint64_t value) {
  return std::to_string(value);
}

// Shares in thousandths: a page shows no more of them.
std::string links_json(const StepPicture& picture) {
  return list(kTraceLinks, [&](TraceLink link) {
    const auto i = static_cast<size_t>(link);
    return fmt::format(R"({{"key":"{}","bytes":{},"busy_ns":{},"shares":{}}})", key_of(link),
                       picture.bytes[i], picture.busy_ns[i], list(picture.busy_shares[i], [](double share) {
                         return whole(static_cast<uint64_t>(std::lround(1000 * share)));
                       }));
  });
}

std::string device_json(const StepPicture& picture) {
  const TraceFacts& facts = picture.facts;
  const auto slots = [&](uint32_t DeviceSample::*count) {
    return list(picture.device, [&](const DeviceSample& sample) { return whole(sample.*count); });
  };
  return fmt::format(
      R"({{"budget_bytes":{},"other_bytes":{},"slot_bytes":{},"param":{},"grad":{},"leaving":{}}})",
      facts.device_budget_bytes, facts.device_other_bytes, facts.device_slot_bytes,
      slots(&DeviceSample::param_slots), slots(&DeviceSample::grad_slots),
      slots(&DeviceSample::leaving_slots));
}

std::string host_json(const StepPicture& picture) {
  const TraceFacts& facts = picture.facts;
  return fmt::format(R"({{"budget_bytes":{},"ring_slot_bytes":{},"bytes":{},"ring":{}}})",
                     facts.host_budget_bytes, facts.ring_slot_bytes, list(picture.host_bytes, whole),
                     list(picture.ring_slots, whole));
}

// A digit for each cell.
std::string rows_json(const StepPicture& picture) {
  return list(picture.rows, [](const std::vector<ChunkPresence>& row) {
    std::string digits;
    for (const ChunkPresence presence : row) digits += static_cast<char>('0' + static_cast<char>(presence));
    return '"' + digits + '"';
  });
}

}  // namespace

std::string picture_json(const std::optional<StepPicture>& picture) {
  if (!picture) return "null";
  const std::string phases = list(picture->phases, [](const StepPhase& phase) {
    return fmt::format(R"(["{}",{},{}])", phase.name, phase.begin_ns, phase.end_ns);
  });
  return fmt::format(
      R"({{"step":{},"length_ns":{},"parts":{},"left_out":{},"phases":{},"links":{},"device":{},"host":{},)"
      R"("chunks":{{"count":{},"per_row":{},"rows":{}}}}})",
      picture->step, picture->length_ns, StepPicture::kParts, picture->left_out, phases, links_json(*picture),
      device_json(*picture), host_json(*picture), picture->facts.chunk_count, picture->chunks_per_row,
      rows_json(*picture));
}

}  // namespace terrace
