#include <terrace/comm/identity/rank_identity.h>

#include <fmt/format.h>

#include <limits>

#include <terrace/base/text/digits.h>
#include <terrace/comm/identity/launcher_claim.h>

namespace terrace {
namespace {

void require_agreement(const LauncherClaim& one, const LauncherClaim& other) {
  if (one.rank == other.rank && one.size == other.size) return;
  const bool sizes = one.size != other.size;
  throw no_rank(
      fmt::format("{}={} and {}={}", sizes ? one.size_name : one.from->rank, sizes ? one.size : one.rank,
                  sizes ? other.size_name : other.from->rank, sizes ? other.size : other.rank),
      fmt::format("{} says that it is rank {} of {}, and {} that it is rank {} of {}", one.from->name,
                  one.rank, one.size, other.from->name, other.rank, other.size),
      fmt::format(
          "start the run with one of the two; if only one of them has started it, unset what the other one "
          "has left: {}, or {}",
          to_unset(one), to_unset(other)));
}

// Whether `step`, a claim of Slurm, counts the agents of the launcher that made `claim`: one task for each
// host, and ranks on several hosts that are no fewer than the tasks.
bool counts_agents(const Environment& variables, const LauncherClaim& step, const LauncherClaim& claim) {
  return step.from->launcher == Launcher::slurm &&
         variable_number(variables, "SLURM_STEP_NUM_NODES") == step.size && claim.local_size &&
         *claim.local_size < claim.size && step.size <= claim.size;
}

// Takes from a launcher that agrees what the first one does not say.
void add_local(const LauncherClaim& agreeing, LauncherClaim& claim) {
  if (!claim.local_rank && !claim.local_size) claim.local_rank = agreeing.local_rank;
  if (!claim.local_size && claim.local_rank == agreeing.local_rank) claim.local_size = agreeing.local_size;
}

// Nothing if the process is alone.
std::optional<LauncherClaim> agreed_claim(const Environment& variables) {
  std::optional<LauncherClaim> agreed;
  for (const LauncherVariables& launcher : launcher_table()) {
    const std::optional<LauncherClaim> claim = claim_of(variables, launcher);
    if (!claim) continue;
    if (!agreed) {
      agreed = claim;
    } else if (!counts_agents(variables, *claim, *agreed)) {
      require_agreement(*agreed, *claim);
      add_local(*claim, *agreed);
    }
  }
  return agreed;
}

void require_given(std::string_view what, std::optional<uint32_t> given, std::string_view name,
                   std::optional<uint32_t> said, const LauncherClaim& claim) {
  if (!given || !said || *given == *said) return;
  throw no_rank(fmt::format("{} {} and {}={}", what, *given, name, *said),
                fmt::format("the caller gives {} {}, and {} says {}", what, *given, claim.from->name, *said),
                fmt::format("give what {} says, or nothing; if it has not started this run, unset {}",
                            claim.from->name, to_unset(claim)));
}

// The launcher does not say the local rank, and the caller may.
void require_local(const GivenRank& given, const LauncherClaim& claim) {
  const uint32_t limit = claim.local_size.value_or(claim.size);
  if (given.local_rank.value_or(0) < limit) return;
  throw no_rank(fmt::format("local rank {}", *given.local_rank),
                fmt::format("{} has started {} ranks{}", claim.from->name, limit,
                            claim.local_size ? " on this host" : ""),
                "give a local rank that is less, or none");
}

// The identity of a process of which no launcher speaks.
RankIdentity identity_given(const GivenRank& given) {
  const uint32_t size = given.ranks.value_or(1);
  const std::string advice = "give the number of ranks, and a rank that is less, or neither to run alone";
  if (size == 0) throw no_rank("ranks 0", "a run has at least one process", advice);
  if (size > 1 && !given.rank) throw no_rank(fmt::format("ranks {}", size), "no rank is given", advice);
  if (given.rank.value_or(0) >= size)
    throw no_rank(fmt::format("rank {}", *given.rank), fmt::format("the number of ranks is {}", size),
                  advice);
  if (given.local_rank.value_or(0) >= size)
    throw no_rank(fmt::format("local rank {}", *given.local_rank),
                  fmt::format("the number of ranks is {}", size), advice);
  if (size == 1) return {};
  return {.rank = *given.rank,
          .size = size,
          .local_rank = given.local_rank,
          .local_size = std::nullopt,
          .launcher = Launcher::given};
}

uint16_t port_in(std::string_view variable, std::string_view value, std::string_view port) {
  const std::optional<uint32_t> number = number_of_digits<uint32_t>(port);
  if (!number || *number == 0 || *number > std::numeric_limits<uint16_t>::max())
    throw no_rank(fmt::format("{}={}", variable, value), "its port has to be a number from 1 to 65535",
                  fmt::format("correct {}", variable));
  return static_cast<uint16_t>(*number);
}

std::optional<RendezvousPlace> rendezvous_in(const Environment& variables, Launcher launcher) {
  if (const std::string* const place = variable_text(variables, "TERRACE_MEET"))
    return rendezvous_place_in("TERRACE_MEET", *place);
  const std::string* const host = variable_text(variables, "MASTER_ADDR");
  const std::string* const port = variable_text(variables, "MASTER_PORT");
  if (host != nullptr && port != nullptr)
    return RendezvousPlace{.host = *host, .port = port_in("MASTER_PORT", *port, *port)};
  // Some clusters set one of them for everybody; only where ranks meet by them is it a mistake.
  if (launcher == Launcher::torchrun && host != port)
    throw no_rank(host != nullptr ? "MASTER_ADDR=" + *host : "MASTER_PORT=" + *port,
                  host != nullptr ? "MASTER_PORT is not set" : "MASTER_ADDR is not set",
                  "set both MASTER_ADDR and MASTER_PORT, or neither");
  return std::nullopt;
}

}  // namespace

RendezvousPlace rendezvous_place_in(std::string_view variable, std::string_view value) {
  if (value.starts_with('/')) return {.socket = std::filesystem::path(value)};
  const size_t colon = value.rfind(':');
  std::string_view host = value.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon == std::string_view::npos || host.empty() ||
      (!bracketed && host.find_first_of(":[]") != std::string_view::npos))
    throw no_rank(fmt::format("{}={}", variable, value),
                  "it is neither host:port nor the absolute path of a socket",
                  fmt::format("correct {}; an address of IPv6 stands in brackets: [::1]:29500", variable));
  return {.host = std::string(host), .port = port_in(variable, value, value.substr(colon + 1))};
}

Environment environment_from(const char* const* entries) {
  Environment variables;
  for (; *entries != nullptr; ++entries) {
    const std::string_view entry = *entries;
    const size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::string_view name_of(Launcher launcher) {
  if (launcher == Launcher::none) return "no launcher";
  for (const LauncherVariables& row : launcher_table())
    if (row.launcher == launcher) return row.name;
  return "the caller";
}

RankIdentity identify_rank(const Environment& variables, const GivenRank& given) {
  const std::optional<LauncherClaim> claim = agreed_claim(variables);
  RankIdentity identity;
  if (claim) {
    require_given("ranks", given.ranks, claim->size_name, claim->size, *claim);
    require_given("rank", given.rank, claim->from->rank, claim->rank, *claim);
    require_given("local rank", given.local_rank, claim->from->local_rank, claim->local_rank, *claim);
    if (!claim->local_rank) require_local(given, *claim);
    identity = {.rank = claim->rank,
                .size = claim->size,
                .local_rank = claim->local_rank ? claim->local_rank : given.local_rank,
                .local_size = claim->local_size,
                .launcher = claim->from->launcher};
  } else {
    identity = identity_given(given);
  }
  if (identity.size > kMostRanksOfRun)
    throw no_rank(
        claim ? fmt::format("{}={}", claim->size_name, claim->size) : fmt::format("ranks {}", identity.size),
        fmt::format("a run has at most {} ranks", kMostRanksOfRun),
        claim ? fmt::format("start fewer, or correct {}", claim->size_name) : "start fewer");
  if (!identity.alone()) identity.rendezvous = rendezvous_in(variables, identity.launcher);
  return identity;
}

}  // namespace terrace
