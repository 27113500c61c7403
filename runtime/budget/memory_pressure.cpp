#include <terrace/runtime/budget/memory_pressure.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include <terrace/base/assert.h>
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

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

// The number that begins `text`; none for "max".
std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// What follows `key` and a space in the line that begins with it: "active_file 4096".
uint64_t counter_in(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' '))
      return number_in(line.substr(key.size() + 1)).value_or(0);
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

// What one version of cgroups calls things; in `root`.
struct CgroupVersion {
  std::vector<const char*> mounts;
  std::vector<const char*> limits;  // the lowest one counts
  const char* current;
  const char* active_files;  // in memory.stat, those below it too
  const char* inactive_files;
};

const CgroupVersion kVersion1 = {{"sys/fs/cgroup/memory"},
                                 {"memory.limit_in_bytes"},
                                 "memory.usage_in_bytes",
                                 "total_active_file",
                                 "total_inactive_file"};
const CgroupVersion kVersion2 = {{"sys/fs/cgroup", "sys/fs/cgroup/unified"},
                                 {"memory.max", "memory.high"},
                                 "memory.current",
                                 "active_file",
                                 "inactive_file"};
// Version 1 says "none" by its largest number of whole pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// Whether a line of /proc/PID/cgroup, "4:memory:/job", is about memory in this version.
bool is_about_memory(std::string_view controllers, bool version_1) {
  if (!version_1) return controllers.empty();
  for (;;) {
    const size_t end = controllers.find(',');
    if (controllers.substr(0, end) == "memory") return true;
    if (end == std::string_view::npos) return false;
    controllers.remove_prefix(end + 1);
  }
}

// One above the namespace of this process reads "/../x": all it sees is its root.
std::optional<std::string> own_cgroup(const fs::path& root, bool version_1) {
  std::istringstream lines(read_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (!is_about_memory(std::string_view(line).substr(first + 1, second - first - 1), version_1)) continue;
    const std::string path = line.substr(second + 1);
    return path.starts_with("/..") ? "/" : path;
  }
  return std::nullopt;
}

std::optional<CgroupMemory> look_at(const fs::path& folder, const std::string& cgroup,
                                    const CgroupVersion& version) {
  CgroupMemory memory;
  memory.cgroup = cgroup;
  memory.limit_bytes = kNoLimit;
  for (const char* limit : version.limits)
    memory.limit_bytes =
        std::min(memory.limit_bytes, number_in(read_text(folder / limit)).value_or(kNoLimit));
  const std::optional<uint64_t> current = number_in(read_text(folder / version.current));
  if (memory.limit_bytes == kNoLimit || !current) return std::nullopt;
  memory.current_bytes = *current;
  const std::string counters = read_text(folder / "memory.stat");
  const uint64_t files =
      counter_in(counters, version.active_files) + counter_in(counters, version.inactive_files);
  memory.held_bytes = *current - std::min(*current, files);
  memory.stalled_percent = stalled_in(read_text(folder / "memory.pressure"));
  return memory;
}

// Of the process's cgroup and its ancestors, that with the least left.
std::optional<CgroupMemory> least_left(const fs::path& root, bool version_1) {
  const std::optional<std::string> own = own_cgroup(root, version_1);
  if (!own) return std::nullopt;
  const CgroupVersion& version = version_1 ? kVersion1 : kVersion2;
  std::optional<CgroupMemory> nearest;
  for (const char* mount : version.mounts) {
    for (std::string path = *own;;) {
      const std::string_view below = std::string_view(path).substr(path.starts_with('/') ? 1 : 0);
      const auto memory = look_at(root / mount / below, path.empty() ? "/" : path, version);
      if (memory && (!nearest || memory->left_bytes() < nearest->left_bytes())) nearest = memory;
      if (path.size() <= 1) break;
      path.resize(std::max<size_t>(path.rfind('/'), 1));
    }
  }
  return nearest;
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

std::optional<CgroupMemory> read_cgroup_memory(const fs::path& root) {
  const std::optional<CgroupMemory> version_2 = least_left(root, false);
  const std::optional<CgroupMemory> version_1 = least_left(root, true);
  if (!version_1 || !version_2) return version_1 ? version_1 : version_2;
  return version_1->left_bytes() < version_2->left_bytes() ? version_1 : version_2;
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
