#include "launch/mpirun_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>

#include <terrace/base/error.h>

#include "launch/launched_process.h"

namespace terrace {
namespace {

Error no_mpirun(Reason reason) {
  return Error(
      ErrorKind::config,
      {"cannot start ranks on several hosts", "mpirun", std::move(reason),
       "install Open MPI on all hosts (Debian: openmpi-bin, and libopenmpi-dev to build Terrace with "
       "it), or start the ranks of one host with -n"});
}

// The first words that `mpirun --version` says; empty where there is no such program.
std::string version_of_mpirun() {
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen("mpirun --version 2>/dev/null", "re"), pclose);
  std::array<char, 256> text{};
  if (output == nullptr) return {};
  return std::string(text.data(), fread(text.data(), 1, text.size(), output.get()));
}

void require_open_mpi() {
  const std::string version = version_of_mpirun();
  if (version.empty()) throw no_mpirun("there is no such program");
  if (version.find("Open MPI") == std::string::npos) throw no_mpirun("it is not that of Open MPI");
}

}  // namespace

std::vector<std::string> mpirun_command(const std::vector<HostSlots>& hosts,
                                        const std::vector<std::string>& command,
                                        const std::filesystem::path& log_folder) {
  std::string list;
  size_t ranks = 0;
  for (const HostSlots& host : hosts) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host.host, host.slots.size());
    ranks += host.slots.size();
  }
  // Terrace divides the processors of a host among its ranks, and mpirun would leave each of them one.
  std::vector<std::string> words = {"mpirun",    "--host", list, "-n", std::to_string(ranks),
                                    "--bind-to", "none"};
  if (!log_folder.empty()) words.insert(words.end(), {"--output-filename", log_folder.string()});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

void become_mpirun(const std::vector<std::string>& command) {
  require_open_mpi();
  execvp("mpirun", pointers_to(command).data());
  throw no_mpirun(system_reason(errno));
}

}  // namespace terrace
