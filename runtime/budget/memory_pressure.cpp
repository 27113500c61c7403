#include <terrace/runtime/budget/memory_pressure.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/cgroups.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kLookNs = kSecondNs / 10;
constexpr uint64_t kStallPauseNs = 10 * kSecondNs;  // as long as the average looks back
constexpr uint64_t kQuietNs = 30 * kSecondNs;
constexpr double kStalledPercent = 10;
constexpr double kCalmPercent = 1;
constexpr uint32_t kPart = 8;          // of the records, that leaves or comes back at a time
constexpr uint64_t kKeptReserves = 2;  // that are left after any change

// Empty where there is no such file.
std::string text_in(const std::string& folder, const char* name) {
  return text_of_system_file(folder + "/" + name).value_or("");
}

// The number of the file; none for "max".
std::optional<uint64_t> number_in(const std::string& folder, const char* name) {
  return number_of_digits(trimmed(text_in(folder, name)));
}

// What follows `key` and a space in the line that begins with it: "active_file 4096".
uint64_t counter_in(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' '))
      return number_of_digits(line.substr(key.size() + 1)).value_or(0);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return 0;
}

// "full avg10=1.50 avg60=..." -> 1.5
double stalled_in(std::string_view text) {
  constexpr std::string_view kKey = "full avg10=";
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return 0;
  const std::string_view number = text.substr(at + kKey.size());
  double value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return value;
}

// What one version of cgroups calls things.
struct CgroupVersion {
  std::vector<const char*> limits;  // the lowest one counts
  const char* current;
  const char* active_files;  // in memory.stat, those below it too
  const char* inactive_files;
};

const CgroupVersion kVersion1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_active_file", "total_inactive_file"};
const CgroupVersion kVersion2 = {
    {"memory.max", "memory.high"}, "memory.current", "active_file", "inactive_file"};
// Version 1 says "none" by its largest number of whole pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

std::optional<CgroupMemory> look_at(const CgroupFolder& of) {
  const CgroupVersion& version = of.is_v2 ? kVersion2 : kVersion1;
  CgroupMemory memory;
  memory.cgroup = of.cgroup;
  memory.limit_bytes = kNoLimit;
  for (const char* limit : version.limits)
    memory.limit_bytes = std::min(memory.limit_bytes, number_in(of.folder, limit).value_or(kNoLimit));
  const std::optional<uint64_t> current = number_in(of.folder, version.current);
  if (memory.limit_bytes == kNoLimit || !current) return std::nullopt;
  memory.current_bytes = *current;
  const std::string counters = text_in(of.folder, "memory.stat");
  const uint64_t files =
      counter_in(counters, version.active_files) + counter_in(counters, version.inactive_files);
  memory.held_bytes = *current - std::min(*current, files);
  memory.stalled_percent = stalled_in(text_in(of.folder, "memory.pressure"));
  return memory;
}

std::string holds_text(const CgroupMemory& memory) {
  return fmt::format("the cgroup {} holds {} of the {} it may have", memory.cgroup,
                     format_bytes(memory.held_bytes), format_bytes(memory.limit_bytes));
}

// Chunks that leave or come back at a time.
uint32_t part_of(const HostRecords& records) {
  return std::max<uint32_t>(1, records.most_chunks / kPart);
}

}  // namespace

// Of the process's cgroups and their ancestors, that with the least left.
std::optional<CgroupMemory> read_cgroup_memory(const fs::path& root) {
  std::optional<CgroupMemory> nearest;
  for (const CgroupFolder& folder : memory_cgroups(root)) {
    const std::optional<CgroupMemory> memory = look_at(folder);
    if (memory && (!nearest || memory->left_bytes() < nearest->left_bytes())) nearest = memory;
  }
  return nearest;
}

std::optional<PressureDecision> PressureRule::decide(const CgroupMemory& memory, const HostRecords& records,
                                                     uint64_t now_ns) {
  TERRACE_ASSERT(records.chunk_bytes > 0, "records have bytes");
  const uint64_t left = memory.left_bytes();
  const uint64_t reserve = memory.reserve_bytes();
  const bool is_short = left < reserve;
  const uint64_t unused = memory.limit_bytes - std::min(memory.limit_bytes, memory.current_bytes);
  const bool stalls = memory.stalled_percent >= kStalledPercent && unused < reserve;
  if (is_short || stalls || memory.stalled_percent >= kCalmPercent) busy_ns_ = now_ns;
  if (is_short || stalls) {
    if (records.kept_chunks == 0) return std::nullopt;
    uint64_t leave = part_of(records);
    if (is_short) {
      leave = divide_up(kKeptReserves * reserve - left, records.chunk_bytes);
    } else {
      if (shrunk_ns_ && now_ns - *shrunk_ns_ < kStallPauseNs) return std::nullopt;
      shrunk_ns_ = now_ns;
    }
    const auto keep =
        static_cast<uint32_t>(records.kept_chunks - std::min<uint64_t>(records.kept_chunks, leave));
    return PressureDecision{
        keep, is_short ? holds_text(memory)
                       : fmt::format("the cgroup {} stood still for memory {:.0f} % of the last 10 s",
                                     memory.cgroup, memory.stalled_percent)};
  }
  const uint64_t spare = left - std::min(left, kKeptReserves * reserve);
  const uint64_t enter =
      std::min<uint64_t>({part_of(records), spare / records.chunk_bytes,
                          records.most_chunks - std::min(records.most_chunks, records.kept_chunks)});
  if (enter == 0 || now_ns - busy_ns_ < kQuietNs) return std::nullopt;
  busy_ns_ = now_ns;
  return PressureDecision{records.kept_chunks + static_cast<uint32_t>(enter),
                          fmt::format("memory is free again: {}", holds_text(memory))};
}

std::optional<PressureDecision> MemoryPressure::look(const HostRecords& records) {
  const uint64_t now_ns = clock_.now_ns();
  if (looked_ns_ && now_ns - *looked_ns_ < kLookNs) return std::nullopt;
  looked_ns_ = now_ns;
  const std::optional<CgroupMemory> memory = read_cgroup_memory(root_);
  return memory ? rule_.decide(*memory, records, now_ns) : std::nullopt;
}

}  // namespace terrace
