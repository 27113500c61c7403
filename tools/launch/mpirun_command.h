// MpirunCommand: the command line of Open MPI's mpirun that starts ranks on the hosts of a hostfile.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

namespace terrace {

// Returns "mpirun ..." word by word: a rank for every slot of the hosts, each with this program, which has to
// be at the same path on all hosts, and the arguments. An empty `log_folder` stands for none.
std::vector<std::string> mpirun_command(const std::vector<HostSlots>& hosts,
                                        const std::filesystem::path& program,
                                        const std::vector<std::string>& arguments,
                                        const std::filesystem::path& log_folder);

// The same for a launcher that stays beside it and starts what is left again: each host has a part of the
// command of its own, so that ranks are numbered in the order of `hosts` wherever mpirun runs, and all ranks
// have these variables ("NAME=value", or "NAME" with the value that mpirun has) as well. mpirun starts its
// daemons through an agent (agent_words()).
std::vector<std::string> watched_mpirun_command(const std::vector<HostSlots>& hosts,
                                                const std::filesystem::path& program,
                                                const std::vector<std::string>& arguments,
                                                const std::filesystem::path& log_folder,
                                                const std::vector<std::string>& variables);

// Throws Error(config) where there is no mpirun, or one of another MPI.
void require_open_mpi();

// Becomes mpirun. Throws as require_open_mpi() does.
[[noreturn]] void become_mpirun(const std::vector<std::string>& command);

}  // namespace terrace
