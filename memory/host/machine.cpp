#include <terrace/memory/host/machine.h>

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include <terrace/base/cgroups.h>
#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/topology.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

namespace terrace {
namespace {

constexpr int kCapIpcLock = 14;  // from linux/capability.h; RLIMIT_MEMLOCK does not apply to its holder

[[noreturn]] void fail_to_parse(const std::string& file, const std::string& reason) {
  throw Error(ErrorKind::io, {"cannot find out what this machine offers from", file, reason,
                              "set the budgets in the configuration"});
}

std::string require_text(const std::string& path) {
  const std::optional<std::string> text = text_of_system_file(path);
  if (!text) fail_to_parse(path, "it cannot be read");
  return *text;
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
    value = trimmed(line.substr(key.size()));
    return false;
  });
  return value;
}

// Returns the bytes of a line as in "MemAvailable:   123 kB": 123 * 1024.
std::optional<uint64_t> kilobytes_after(std::string_view text, std::string_view key) {
  std::optional<std::string_view> value = value_after(text, key);
  if (!value || !value->ends_with(" kB")) return std::nullopt;
  const std::optional<uint64_t> number = number_of_digits(trimmed(value->substr(0, value->size() - 3)));
  if (!number) return std::nullopt;
  return *number * kKiB;
}

const char* limit_file(const CgroupFolder& cgroup) {
  return cgroup.is_v2 ? "memory.max" : "memory.limit_in_bytes";
}

// Returns nothing if the file is not there or says that there is no limit.
std::optional<uint64_t> cgroup_limit(const std::string& file) {
  const std::optional<std::string> text = text_of_system_file(file);
  if (!text || trimmed(*text) == "max") return std::nullopt;
  const std::optional<uint64_t> limit = number_of_digits(trimmed(*text));
  if (!limit) fail_to_parse(file, "\"" + std::string(trimmed(*text)) + "\" is not a number of bytes");
  constexpr uint64_t kUnlimited = uint64_t{1} << 62;  // version 1 writes the largest multiple of a page
  return *limit >= kUnlimited ? std::nullopt : limit;
}

SourcedBytes find_memory_limit(const std::string& root) {
  const std::string meminfo = under_root(root, "proc/meminfo");
  const std::optional<uint64_t> available = kilobytes_after(require_text(meminfo), "MemAvailable:");
  if (!available) fail_to_parse(meminfo, "it has no MemAvailable");
  SourcedBytes least{*available, "MemAvailable of /proc/meminfo"};
  for (const CgroupFolder& cgroup : memory_cgroups(root)) {
    const std::optional<uint64_t> limit = cgroup_limit(cgroup.folder + "/" + limit_file(cgroup));
    if (limit && *limit < least.bytes)
      least = {*limit, std::string(limit_file(cgroup)) + " of cgroup " + cgroup.cgroup, true};
  }
  return least;
}

std::optional<uint64_t> find_memlock_limit(const std::string& root, std::string_view status) {
  if (const auto value = value_after(status, "CapEff:")) {
    const std::optional<uint64_t> capabilities = number_of_digits(*value, 16);
    if (capabilities && (*capabilities >> kCapIpcLock & 1) != 0) return std::nullopt;
  }
  const std::string path = under_root(root, "proc/self/limits");
  const std::string text = require_text(path);
  const std::optional<std::string_view> limits = value_after(text, "Max locked memory");
  if (!limits) fail_to_parse(path, "it has no \"Max locked memory\"");
  const std::string_view soft = limits->substr(0, limits->find(' '));
  if (soft == "unlimited") return std::nullopt;
  const std::optional<uint64_t> bytes = number_of_digits(soft);
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
  for (const CgroupFolder& cgroup : memory_cgroups(root)) {
    const std::optional<std::string> text = text_of_system_file(cgroup.folder + "/memory.stat");
    if (!text) continue;
    const auto anonymous = value_after(*text, cgroup.is_v2 ? "anon " : "total_rss ");
    const auto shared = value_after(*text, cgroup.is_v2 ? "shmem " : "total_shmem ");
    if (!anonymous || !shared) continue;
    const std::optional<uint64_t> anonymous_bytes = number_of_digits(*anonymous);
    const std::optional<uint64_t> shared_bytes = number_of_digits(*shared);
    if (anonymous_bytes && shared_bytes) return *anonymous_bytes + *shared_bytes;
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
  const std::string status_path = under_root(root, "proc/self/status");
  const std::string status = require_text(status_path);
  machine.memlock_limit_bytes = find_memlock_limit(root, status);
  const auto allowed = value_after(status, "Cpus_allowed_list:");
  if (!allowed) fail_to_parse(status_path, "it has no Cpus_allowed_list");
  machine.cores = parse_cpu_list(std::string(*allowed), status_path);
  if (machine.cores.empty()) fail_to_parse(status_path, "its Cpus_allowed_list is empty");
  machine.page_bytes = page_bytes();
  const std::string huge = under_root(root, "sys/kernel/mm/transparent_hugepage/");
  machine.huge_page_mode = chosen_mode(text_of_system_file(huge + "enabled").value_or(""));
  const std::optional<std::string> huge_bytes = text_of_system_file(huge + "hpage_pmd_size");
  if (huge_bytes) machine.huge_page_bytes = number_of_digits(trimmed(*huge_bytes)).value_or(0);
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
  const std::string text = text_of_system_file(under_root(root, "proc/self/smaps_rollup")).value_or("");
  return {kilobytes_after(text, "Pss:").value_or(0), cgroup_use(root)};
}

}  // namespace terrace
