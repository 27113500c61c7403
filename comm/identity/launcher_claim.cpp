#include <terrace/comm/identity/launcher_claim.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include <terrace/base/text/digits.h>

namespace terrace {
namespace {

// In the order in which they are asked who the process is. Slurm is the last because it may have started
// another. srun keeps the job's SLURM_NTASKS where it is told to preserve the environment;
// SLURM_STEP_NUM_TASKS is the step's.
constexpr std::array<LauncherVariables, 5> kLaunchers = {{
    {Launcher::terrace, "Terrace", "TERRACE_RANK", "TERRACE_RANKS", "TERRACE_LOCAL_RANK",
     "TERRACE_LOCAL_RANKS"},
    {Launcher::openmpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::mpich, "MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::slurm, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NTASKS",
     "SLURM_STEP_ID"},
}};

void require_below(std::string_view name, uint32_t number, std::string_view limit_name, uint32_t limit) {
  if (number < limit) return;
  throw no_rank(fmt::format("{}={}", name, number),
                fmt::format("it has to be less than {}={}", limit_name, limit),
                fmt::format("correct {} or {}, or unset both to run alone", name, limit_name));
}

[[noreturn]] void throw_half_a_set(std::string_view name, uint32_t number, std::string_view missing) {
  throw no_rank(fmt::format("{}={}", name, number), fmt::format("{} is not set", missing),
                fmt::format("set {} too, or unset {} if this run has one process", missing, name));
}

// SLURM_STEP_TASKS_PER_NODE counts the tasks of each host in their order: "4(x2),3" is 4, 4, 3. Text of
// another form leaves the number unknown, as a launcher does that does not say it.
std::optional<uint32_t> slurm_tasks_of_host(const Environment& variables) {
  const std::string* const counts = variable_text(variables, "SLURM_STEP_TASKS_PER_NODE");
  const std::optional<uint32_t> host = variable_number(variables, "SLURM_NODEID");
  if (counts == nullptr || !host) return std::nullopt;
  uint64_t hosts_before = 0;
  for (std::string_view rest = *counts; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t bracket = item.find("(x");
    const std::optional<uint32_t> tasks = number_of_digits<uint32_t>(item.substr(0, bracket));
    std::optional<uint32_t> hosts = 1;
    if (bracket != std::string_view::npos)
      hosts = item.ends_with(')')
                  ? number_of_digits<uint32_t>(item.substr(bracket + 2, item.size() - bracket - 3))
                  : std::nullopt;
    if (!tasks || !hosts) return std::nullopt;
    hosts_before += *hosts;
    if (*host < hosts_before) return tasks;
  }
  return std::nullopt;
}

// Reads the place among the ranks of the host.
void read_local(const Environment& variables, LauncherClaim& claim) {
  const LauncherVariables& from = *claim.from;
  claim.local_rank = variable_number(variables, from.local_rank);
  if (from.launcher == Launcher::slurm) {
    claim.local_size = slurm_tasks_of_host(variables);
    if (claim.local_size &&
        (claim.local_rank.value_or(0) >= *claim.local_size || *claim.local_size > claim.size))
      claim.local_size.reset();
  } else {
    claim.local_size = variable_number(variables, from.local_size);
  }
  if (claim.local_size && (*claim.local_size == 0 || *claim.local_size > claim.size))
    throw no_rank(fmt::format("{}={}", from.local_size, *claim.local_size),
                  fmt::format("it has to be from 1 to {}={}", claim.size_name, claim.size),
                  fmt::format("correct {}, or unset it", from.local_size));
  if (!claim.local_rank) return;
  const bool named = claim.local_size && !from.local_size.empty();
  require_below(from.local_rank, *claim.local_rank, named ? from.local_size : claim.size_name,
                named ? *claim.local_size : claim.size);
}

}  // namespace

std::span<const LauncherVariables> launcher_table() {
  return kLaunchers;
}

std::optional<LauncherClaim> claim_of(const Environment& variables, const LauncherVariables& from) {
  if (!from.only_with.empty() && variable_text(variables, from.only_with) == nullptr) return std::nullopt;
  const bool older =
      variable_text(variables, from.size) == nullptr && variable_text(variables, from.older_size) != nullptr;
  LauncherClaim claim;
  claim.from = &from;
  claim.size_name = older ? from.older_size : from.size;
  const std::optional<uint32_t> rank = variable_number(variables, from.rank);
  const std::optional<uint32_t> size = variable_number(variables, claim.size_name);
  if (!rank && !size) return std::nullopt;
  if (!size) throw_half_a_set(from.rank, *rank, from.size);
  if (*size == 0)
    throw no_rank(fmt::format("{}=0", claim.size_name), "a run has at least one process",
                  fmt::format("correct {}, or unset it to run alone", claim.size_name));
  if (!rank && *size > 1) throw_half_a_set(claim.size_name, *size, from.rank);
  require_below(from.rank, rank.value_or(0), claim.size_name, *size);
  if (*size == 1) return std::nullopt;
  claim.rank = *rank;
  claim.size = *size;
  read_local(variables, claim);
  return claim;
}

std::string to_unset(const LauncherClaim& claim) {
  if (!claim.from->only_with.empty()) return std::string(claim.from->only_with);
  return fmt::format("{} and {}", claim.from->rank, claim.size_name);
}

const std::string* variable_text(const Environment& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.empty() ? nullptr : &found->second;
}

std::optional<uint32_t> variable_number(const Environment& variables, std::string_view name) {
  const std::string* const text = variable_text(variables, name);
  if (text == nullptr) return std::nullopt;
  const std::optional<uint32_t> number = number_of_digits<uint32_t>(*text);
  if (!number)
    throw no_rank(fmt::format("{}={}", name, *text),
                  fmt::format("{} has to be a whole number, without a sign or a blank", name),
                  fmt::format("correct {}, or unset it if no launcher has set it", name));
  return number;
}

Error no_rank(std::string subject, std::string reason, std::string advice) {
  return Error(ErrorKind::config, {"cannot tell which rank of a run this process is", std::move(subject),
                                   std::move(reason), std::move(advice)});
}

}  // namespace terrace
