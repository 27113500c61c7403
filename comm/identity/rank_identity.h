// RankIdentity: which rank of a run this process is, from the variables that a launcher leaves in the
// environment of the processes it starts. Everything here is a pure function of its arguments: nothing reads
// the environment of the process, a file or a host's name. All functions may be called from any thread.
//
// Several launchers may have left variables: torchrun starts from a job step of Slurm, mpirun from a script.
// Those that speak of one process say nothing. Those that speak of more have to agree; one process that takes
// itself for another rank would write over that rank's files, so a contradiction is an error and never a
// choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// Variables by name. A variable that is empty counts as one that is not set.
using Environment = std::map<std::string, std::string, std::less<>>;

// Entries "NAME=value" up to a null pointer, as in `environ`, copied. The first of two entries of a name
// counts, as for getenv(); an entry without "=" is left out.
Environment environment_from(const char* const* entries);

// Where the variables came from.
enum class Launcher : uint8_t {
  none,      // the process is alone
  given,     // the caller said so, and no variable did
  terrace,   // TERRACE_RANK, TERRACE_RANKS, TERRACE_LOCAL_RANK, TERRACE_LOCAL_RANKS
  openmpi,   // mpirun of Open MPI
  mpich,     // mpiexec of MPICH and of what descends from it, and Slurm's PMI
  torchrun,  // torchrun, and whatever sets RANK and WORLD_SIZE as it does
  slurm,     // srun
};
std::string_view name_of(Launcher launcher);  // "Open MPI"

// Where the ranks of a run find each other: at a host and a port, or at a socket in the file system of the
// one host that they share. Either `socket` is empty, or `host` is and `port` is 0.
struct RendezvousPlace {
  std::string host = {};  // a name or an address, without the brackets of IPv6
  uint16_t port = 0;
  std::filesystem::path socket = {};

  bool operator==(const RendezvousPlace&) const = default;
};

// The place that a variable names: "host:port", "[address of IPv6]:port", or the absolute path of a socket.
// Throws Error(config), which names the variable, where it is none of these.
RendezvousPlace rendezvous_place_in(std::string_view variable, std::string_view value);

inline constexpr uint32_t kMostRanksOfRun = 16384;

struct RankIdentity {
  uint32_t rank = 0;  // less than `size`
  uint32_t size = 1;  // the number of ranks of the run
  // The rank among those of its host, and their number, where the launcher says them.
  std::optional<uint32_t> local_rank = 0;
  std::optional<uint32_t> local_size = 1;
  Launcher launcher = Launcher::none;
  // TERRACE_MEET, or else MASTER_ADDR with MASTER_PORT; absent where neither is set. Under torchrun its own
  // store may be listening on that port already.
  std::optional<RendezvousPlace> rendezvous = {};

  bool alone() const { return size == 1; }
  bool operator==(const RankIdentity&) const = default;
};

// What the caller knows without the environment, from flags for example.
struct GivenRank {
  std::optional<uint32_t> rank = {};
  std::optional<uint32_t> ranks = {};
  std::optional<uint32_t> local_rank = {};
};

// The default RankIdentity where no launcher speaks of more than one process. Throws Error(config) that names
// the variables concerned: where one is no number, is out of range (kMostRanksOfRun), or is missing beside
// another, where two launchers or a launcher and `given` contradict each other, and where a rendezvous place
// is none.
//
// Slurm counts in a job step only (SLURM_STEP_ID). The script of sbatch and the shell of salloc have
// SLURM_NTASKS, and the script has SLURM_PROCID=0 too, but they are one process. Where a job step has one
// task for each host, and another launcher speaks of ranks on several hosts, the tasks are that launcher's
// agents (a torchrun or a daemon of mpirun on each host), and the other launcher counts.
RankIdentity identify_rank(const Environment& variables, const GivenRank& given = {});

}  // namespace terrace
