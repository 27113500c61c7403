// HostQuestions: which hosts of a run can take ranks again. Each is asked through the agent by which mpirun
// starts its daemons there (ssh, or that of OMPI_MCA_plm_rsh_agent), and this host itself directly.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

namespace terrace {

// The agent that mpirun takes: of alternatives "ssh -x : rsh" the first that is a program of this host. Empty
// where none is.
std::vector<std::string> agent_words(std::string_view alternatives);

// Kills on every host the processes that still have the run's name in their environment (kRunName), and
// returns which hosts have answered, in their order, that none is left. Takes `patience` where one does not
// answer.
std::vector<bool> free_hosts(const std::vector<HostSlots>& hosts, const std::string& run,
                             std::chrono::milliseconds patience);

}  // namespace terrace
