#include <terrace/memory/host/machine.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/topology.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

namespace terrace {
namespace {

constexpr int kCapIpcLock = 14;  // from linux/capability.h; RLIMIT_MEMLOCK does not apply to its holder

std::string under(const std::string& root, std::string_view path) {
  std::string result = root;
  while (!result.empty() && result.back() == '/') result.pop_back();
  return result + "/" + std::string(path);
}

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void fail_to_parse(const std::string& file, const std::string& reason) {
  throw Error(ErrorKind::io, {"cannot find out what this machine offers from", file, reason,
                              "set the budgets in the configuration"});
}

std::string require_text(const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) fail_to_parse(path, "it cannot be read");
  return *text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Returns the whole of `text` as a number; nothing if it is not one.
std::optional<uint64_t> parse_number(std::string_view text, int base = 10) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Calls use(line) for every line until it returns false.
template <typename Use>
void for_each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (!use(text.substr(0, end))) return;
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// Returns the rest of the first line that begins with `key`.
std::optional<std::string_view> value_after(std::string_view text, std::string_view key) {
  std::optional<std::string_view> value;
  for_each_line(text, [&](std::string_view line) {
    if (!line.starts_with(key)) return true;
    value = trim(line.substr(key.size()));
    return false;
  });
  return value;
}

// Returns the bytes of a line as in "MemAvailable:   123 kB": 123 * 1024.
std::optional<uint64_t> kilobytes_after(std::string_view text, std::string_view key) {
  std::optional<std::string_view> value = value_after(text, key);
  if (!value || !value->ends_with(" kB")) return std::nullopt;
  const std::optional<uint64_t> number = parse_number(trim(value->substr(0, value->size() - 3)));
  if (!number) return std::nullopt;
  return *number * kKiB;
}

// Cgroup: the memory cgroup of this process in one hierarchy.
struct Cgroup {
  bool v2 = false;
  std::string path;  // for example "/" or "/a/b"
  const char* limit_file() const { return v2 ? "memory.max" : "memory.limit_in_bytes"; }
};

std::vector<Cgroup> memory_cgroups(const std::string& root) {
  std::vector<Cgroup> found;
  const std::optional<std::string> text = read_text(under(root, "proc/self/cgroup"));
  if (!text) return found;
  // A line is "<hierarchy>:<controllers>:<path>"; version 2 is hierarchy 0 and names no controllers.
  for_each_line(*text, [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return true;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    std::string path(line.substr(second + 1));
    // A cgroup above the namespace of this process reads "/../x"; the process sees only its root.
    if (path.empty() || path.find("/..") != std::string::npos) path = "/";
    const bool v2 = line.substr(0, first) == "0" && controllers.empty();
    const bool v1_memory = ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
    if (v2 || v1_memory) found.push_back({v2, path});
    return true;
  });
  return found;
}

std::vector<std::string> mount_points(const Cgroup& cgroup, const std::string& root) {
  if (cgroup.v2) return {under(root, "sys/fs/cgroup"), under(root, "sys/fs/cgroup/unified")};
  return {under(root, "sys/fs/cgroup/memory")};
}

// Returns "/a/b", "/a" and "/" for "/a/b". A container often sees its own cgroup as the root of the mount, so
// the folder of the whole path may be missing while that of an ancestor is there.
std::vector<std::string> with_ancestors(std::string path) {
  std::vector<std::string> result;
  while (path.size() > 1) {
    result.push_back(path);
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
  result.push_back("/");
  return result;
}

// Returns nothing if the file is not there or says that there is no limit.
std::optional<uint64_t> cgroup_limit(const std::string& file) {
  const std::optional<std::string> text = read_text(file);
  if (!text || trim(*text) == "max") return std::nullopt;
  const std::optional<uint64_t> limit = parse_number(trim(*text));
  if (!limit) fail_to_parse(file, "\"" + std::string(trim(*text)) + "\" is not a number of bytes");
  constexpr uint64_t kUnlimited = uint64_t{1} << 62;  // version 1 writes the largest multiple of a page
  return *limit >= kUnlimited ? std::nullopt : limit;
}

SourcedBytes find_memory_limit(const std::string& root) {
  const std::string meminfo = under(root, "proc/meminfo");
  const std::optional<uint64_t> available = kilobytes_after(require_text(meminfo), "MemAvailable:");
  if (!available) fail_to_parse(meminfo, "it has no MemAvailable");
  SourcedBytes least{*available, "MemAvailable of /proc/meminfo"};
  for (const Cgroup& cgroup : memory_cgroups(root)) {
    for (const std::string& mount : mount_points(cgroup, root)) {
      for (const std::string& path : with_ancestors(cgroup.path)) {
        const std::string folder = path == "/" ? mount : mount + path;
        const std::optional<uint64_t> limit = cgroup_limit(folder + "/" + cgroup.limit_file());
        if (limit && *limit < least.bytes)
          least = {*limit, std::string(cgroup.limit_file()) + " of cgroup " + path, true};
      }
    }
  }
  return least;
}

std::optional<uint64_t> find_memlock_limit(const std::string& root, std::string_view status) {
  if (const auto value = value_after(status, "CapEff:")) {
    const std::optional<uint64_t> capabilities = parse_number(*value, 16);
    if (capabilities && (*capabilities >> kCapIpcLock & 1) != 0) return std::nullopt;
  }
  const std::string path = under(root, "proc/self/limits");
  const std::string text = require_text(path);
  const std::optional<std::string_view> limits = value_after(text, "Max locked memory");
  if (!limits) fail_to_parse(path, "it has no \"Max locked memory\"");
  const std::string_view soft = limits->substr(0, limits->find(' '));
  if (soft == "unlimited") return std::nullopt;
  const std::optional<uint64_t> bytes = parse_number(soft);
  if (!bytes) fail_to_parse(path, "\"" + std::string(soft) + "\" is not a number of bytes");
  return bytes;
}

// Returns "madvise" for "always [madvise] never".
std::string chosen_mode(std::string_view text) {
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "none";
  return std::string(text.substr(begin + 1, end - begin - 1));
}

DefaultBudget share_of(const Machine& machine, uint64_t percent) {
  const uint64_t bytes = machine.memory_limit.bytes / 100 * percent;
  return {bytes / kHugePageBytes * kHugePageBytes, std::to_string(percent) + " % of " +
                                                       format_bytes(machine.memory_limit.bytes) + " (" +
                                                       machine.memory_limit.origin + ")"};
}

// Returns the anonymous and shared memory of the nearest cgroup that can be seen.
std::optional<uint64_t> cgroup_use(const std::string& root) {
  for (const Cgroup& cgroup : memory_cgroups(root)) {
    for (const std::string& mount : mount_points(cgroup, root)) {
      for (const std::string& path : with_ancestors(cgroup.path)) {
        const std::optional<std::string> text =
            read_text((path == "/" ? mount : mount + path) + "/memory.stat");
        if (!text) continue;
        const auto anonymous = value_after(*text, cgroup.v2 ? "anon " : "total_rss ");
        const auto shared = value_after(*text, cgroup.v2 ? "shmem " : "total_shmem ");
        if (!anonymous || !shared) continue;
        const std::optional<uint64_t> anonymous_bytes = parse_number(*anonymous);
        const std::optional<uint64_t> shared_bytes = parse_number(*shared);
        if (anonymous_bytes && shared_bytes) return *anonymous_bytes + *shared_bytes;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<uint32_t> parse_cpu_list(const std::string& text, const std::string& file) {
  std::optional<std::vector<uint32_t>> cores = parse_number_list(text);
  if (!cores) fail_to_parse(file, "\"" + text + "\" is not a list of processors");
  return *std::move(cores);
}

Machine probe_machine(const std::string& root) {
  Machine machine;
  machine.memory_limit = find_memory_limit(root);
  const std::string status_path = under(root, "proc/self/status");
  const std::string status = require_text(status_path);
  machine.memlock_limit_bytes = find_memlock_limit(root, status);
  const auto allowed = value_after(status, "Cpus_allowed_list:");
  if (!allowed) fail_to_parse(status_path, "it has no Cpus_allowed_list");
  machine.cores = parse_cpu_list(std::string(*allowed), status_path);
  if (machine.cores.empty()) fail_to_parse(status_path, "its Cpus_allowed_list is empty");
  machine.page_bytes = page_bytes();
  const std::string huge = under(root, "sys/kernel/mm/transparent_hugepage/");
  machine.huge_page_mode = chosen_mode(read_text(huge + "enabled").value_or(""));
  const std::optional<std::string> huge_bytes = read_text(huge + "hpage_pmd_size");
  if (huge_bytes) machine.huge_page_bytes = parse_number(trim(*huge_bytes)).value_or(0);
  return machine;
}

DefaultBudget default_host_budget(const Machine& machine) {
  return share_of(machine, 80);
}
DefaultBudget largest_simulated_device_budget(const Machine& machine) {
  return share_of(machine, 25);
}

MemoryUse current_memory_use(const std::string& root) {
  // A missing file does not end a run: it may not exist, or no descriptor may be left to read it with.
  const std::string text = read_text(under(root, "proc/self/smaps_rollup")).value_or("");
  return {kilobytes_after(text, "Pss:").value_or(0), cgroup_use(root)};
}

}  // namespace terrace
