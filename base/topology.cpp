#include <terrace/base/topology.h>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <terrace/base/cgroups.h>
#include <terrace/base/text/digits.h>

namespace terrace {
namespace {

constexpr uint32_t kMostNumbers = 1 << 16;

std::optional<std::vector<uint32_t>> read_list(const std::string& root, const std::string& path) {
  const std::optional<std::string> text = text_of_system_file(root + "/" + path);
  return text ? parse_number_list(*text) : std::nullopt;
}

std::map<uint32_t, uint32_t> nodes_of_cpus(const std::string& root) {
  std::map<uint32_t, uint32_t> found;
  const std::string folder = "sys/devices/system/node";
  for (const uint32_t node : read_list(root, folder + "/online").value_or(std::vector<uint32_t>{})) {
    const auto cpus = read_list(root, folder + "/node" + std::to_string(node) + "/cpulist");
    for (const uint32_t cpu : cpus.value_or(std::vector<uint32_t>{})) found[cpu] = node;
  }
  return found;
}

// "50000 100000" is half a processor; "max 100000" is no limit.
std::optional<uint32_t> quota_of(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const std::string_view both = trimmed(*text);
  const size_t space = both.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> quota = number_of_digits(both.substr(0, space));
  const std::optional<uint64_t> period = number_of_digits(trimmed(both.substr(space)));
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<uint32_t>(std::clamp<uint64_t>((*quota + *period - 1) / *period, 1, kMostNumbers));
}

// The least of this process's cgroup (version 2) and its ancestors; 0 without one. A container sees its own
// cgroup as the root, so what the path names may be missing.
uint32_t read_quota(const std::string& root) {
  const std::optional<std::string> groups = text_of_system_file(root + "/proc/self/cgroup");
  if (!groups) return 0;
  std::istringstream lines(*groups);
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::") && line.find("/..") == std::string::npos) path = line.substr(3);
  }
  uint32_t least = 0;
  while (true) {
    const auto quota = quota_of(text_of_system_file(root + "/sys/fs/cgroup" + path + "/cpu.max"));
    if (quota && (least == 0 || *quota < least)) least = *quota;
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<std::vector<uint32_t>> parse_number_list(std::string_view text) {
  std::vector<uint32_t> numbers;
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    const std::optional<uint64_t> first = number_of_digits(item.substr(0, dash));
    const std::optional<uint64_t> last =
        dash == std::string_view::npos ? first : number_of_digits(item.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMostNumbers) return std::nullopt;
    for (uint64_t number = *first; number <= *last; ++number)
      numbers.push_back(static_cast<uint32_t>(number));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) return std::nullopt;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<uint32_t> Topology::nodes() const {
  std::set<uint32_t> found;
  for (const Cpu& cpu : cpus) found.insert(cpu.node);
  return {found.begin(), found.end()};
}

size_t Topology::core_count() const {
  std::set<uint32_t> found;
  for (const Cpu& cpu : cpus) found.insert(cpu.core);
  return found.size();
}

size_t Topology::default_thread_count() const {
  return quota == 0 ? cpus.size() : std::min<size_t>(cpus.size(), quota);
}

Binding Topology::binding_for(size_t thread_count) const {
  if (thread_count < 2) return {{}, "one thread goes where it likes"};
  if (thread_count > cpus.size())
    return {{}, "there are " + std::to_string(cpus.size()) + " processors for them"};
  if (quota != 0 && thread_count > quota)
    return {{}, "the cgroup gives them " + std::to_string(quota) + " processors' time"};
  const size_t node_count = nodes().size();
  if (node_count == 1 && core_count() == cpus.size())
    return {{}, "one memory node and one hardware thread per core: nothing to keep apart"};
  std::vector<Cpu> first, others;
  std::set<uint32_t> taken;
  for (const Cpu& cpu : cpus) (taken.insert(cpu.core).second ? first : others).push_back(cpu);
  const auto by_node = [](const Cpu& a, const Cpu& b) { return a.node < b.node; };
  std::stable_sort(first.begin(), first.end(), by_node);
  std::stable_sort(others.begin(), others.end(), by_node);
  first.insert(first.end(), others.begin(), others.end());
  Binding binding;
  for (size_t i = 0; i < thread_count; ++i) binding.cpus.push_back(first[i].id);
  binding.reason = (thread_count <= core_count() ? "one per core" : "one per hardware thread") +
                   std::string(node_count > 1 ? ", node by node" : "");
  return binding;
}

Topology Topology::part(size_t index, size_t count) const {
  Topology part;
  if (quota != 0) part.quota = static_cast<uint32_t>(std::max<size_t>(1, quota / count));
  std::vector<std::pair<uint32_t, uint32_t>> cores;  // by node
  for (const Cpu& cpu : cpus) cores.emplace_back(cpu.node, cpu.core);
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  const size_t first = cores.size() * index / count, end = cores.size() * (index + 1) / count;
  const bool is_divided = cores.size() >= count;
  for (const Cpu& cpu : cpus) {
    const auto place = static_cast<size_t>(
        std::lower_bound(cores.begin(), cores.end(), std::pair(cpu.node, cpu.core)) - cores.begin());
    if (!is_divided || (place >= first && place < end)) part.cpus.push_back(cpu);
  }
  return part;
}

Topology read_topology(const std::string& root, const std::vector<uint32_t>& allowed) {
  const std::map<uint32_t, uint32_t> nodes = nodes_of_cpus(root);
  Topology topology;
  for (const uint32_t id : allowed) {
    const auto siblings =
        read_list(root, "sys/devices/system/cpu/cpu" + std::to_string(id) + "/topology/thread_siblings_list");
    const auto node = nodes.find(id);
    topology.cpus.push_back({.id = id,
                             .core = siblings && !siblings->empty() ? siblings->front() : id,
                             .node = node == nodes.end() ? 0 : node->second});
  }
  topology.quota = read_quota(root);
  return topology;
}

Topology read_topology() {
  std::vector<uint32_t> allowed;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (uint32_t id = 0; id < CPU_SETSIZE; ++id) {
      if (CPU_ISSET(id, &set)) allowed.push_back(id);
    }
  }
  if (allowed.empty()) {  // more processors than the set has room for
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (uint32_t id = 0; id < static_cast<uint32_t>(std::max(online, 1L)); ++id) allowed.push_back(id);
  }
  return read_topology("", allowed);
}

int stay_on(const std::vector<Cpu>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const Cpu& cpu : cpus) {
    if (cpu.id < CPU_SETSIZE) CPU_SET(cpu.id, &set);
  }
  return sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : errno;
}

int interleave_memory(void* memory, size_t bytes, const std::vector<uint32_t>& nodes) {
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(nodes.empty() ? 1 : nodes.back() / kWordBits + 1);
  for (const uint32_t node : nodes) mask[node / kWordBits] |= 1UL << node % kWordBits;
  // The kernel looks at one bit less than it is told.
  return syscall(SYS_mbind, memory, bytes, kInterleave, mask.data(), mask.size() * kWordBits + 1, 0) == 0
             ? 0
             : errno;
}

}  // namespace terrace
