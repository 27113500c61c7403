#include "train/machine_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos && colon + 2 < line.size())
      return line.substr(colon + 2);
  }
  return "unknown";
}

std::vector<ReportFact> machine_facts() {
  const Machine machine = probe_machine();
  std::vector<ReportFact> facts;
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0) facts.push_back({"name", name});
  facts.push_back({"processor", cpu_name()});
  facts.push_back({"cores", fmt::format("{} that the process may run on", machine.cores.size())});
  facts.push_back({"instruction set", std::string(name_of(best_instruction_set()))});
  facts.push_back({"memory", fmt::format("{}: {}", format_bytes(machine.memory_limit.bytes),
                                         machine.memory_limit.origin)});
  facts.push_back({"page locking", machine.memlock_limit_bytes
                                       ? format_bytes(*machine.memlock_limit_bytes) + " (RLIMIT_MEMLOCK)"
                                       : "without limit"});
  facts.push_back(
      {"huge pages", fmt::format("{} ({})", machine.huge_page_mode, format_bytes(machine.huge_page_bytes))});
  utsname system{};
  if (uname(&system) == 0) facts.push_back({"system", fmt::format("{} {}", system.sysname, system.release)});
  return facts;
}

}  // namespace terrace
