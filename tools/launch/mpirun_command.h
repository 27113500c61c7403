// MpirunCommand: the command line of Open MPI's mpirun that starts ranks on the hosts of a hostfile.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

namespace terrace {

// Returns "mpirun ..." word by word: a rank for every slot of the hosts, each with the words of `command`,
// whose program has to be at the same path on all hosts. An empty `log_folder` stands for none.
std::vector<std::string> mpirun_command(const std::vector<HostSlots>& hosts,
                                        const std::vector<std::string>& command,
                                        const std::filesystem::path& log_folder);

// Becomes mpirun. Throws Error(config) where there is none, or one of another MPI.
[[noreturn]] void become_mpirun(const std::vector<std::string>& command);

}  // namespace terrace
