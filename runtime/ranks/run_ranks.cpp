#include <terrace/runtime/ranks/run_ranks.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <terrace/comm/agreement/rank_agreement.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/ports/mpi/mpi_plugin.h>
#include <terrace/comm/ports/socket/socket_port.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/ranks/heartbeat_watch.h>
#include <terrace/runtime/ranks/host_share.h>

namespace terrace {
namespace {

bool starts_with_mpi(Launcher launcher) {
  return launcher == Launcher::openmpi || launcher == Launcher::mpich || launcher == Launcher::slurm;
}

// Where the launcher does not say how many ranks a host has, all of them may be on this one.
uint32_t ranks_on_host(const RankIdentity& identity) {
  return identity.local_size.value_or(identity.size);
}

[[noreturn]] void refuse_communicator(std::string_view choice, std::string reason, std::string advice) {
  throw Error(ErrorKind::config,
              {"cannot join the other ranks", fmt::format("terrace.communicator {}", choice),
               std::move(reason), std::move(advice)});
}

// Every rank finds the same.
void require_one_host(const Communicator& ranks) {
  for (const RankPlace& place : ranks.places()) {
    if (place.host != 0)
      refuse_communicator("host",
                          fmt::format("rank 0 is on host {}, and rank {} on host {}",
                                      ranks.places().front().host_name, place.rank, place.host_name),
                          "start all of them on one host, or set it to auto or mpi");
  }
}

}  // namespace

RunRanks::RunRanks(Environment variables, RankProgram& program, const GivenRank& given)
    : program_(program),
      variables_(std::move(variables)),
      identity_(identify_rank(variables_, given)),
      launcher_(variables_),
      watch_(std::make_unique<NoOtherRanks>(program, is_first())) {}

MakeMessagePort RunRanks::message_port(const RankMeeting& meeting) const {
  const std::string_view launcher = name_of(identity_.launcher);
  const bool has_mpi = starts_with_mpi(identity_.launcher);
  if (meeting.communicator == CommunicatorChoice::mpi && !has_mpi)
    refuse_communicator("mpi", fmt::format("{} has started them, and no launcher of MPI", launcher),
                        "start them with mpirun or srun, or leave the key out");
  if (has_mpi && meeting.communicator != CommunicatorChoice::host) return load_mpi(own_mpi_plugin());
  if (has_mpi && !identity_.rendezvous)
    refuse_communicator("host", fmt::format("{} does not say where sockets meet", launcher),
                        "set TERRACE_MEET to HOST:PORT or the path of a socket, or leave the key out");
  SocketRendezvous rendezvous = rendezvous_of(identity_, variables_);
  rendezvous.timeout = meeting.timeout;
  rendezvous.warn = [this](const std::string& text) { program_.log().warning(text); };
  return socket_port(rendezvous);
}

void RunRanks::join(const RankMeeting& meeting) {
  if (!are_several()) return;
  std::vector<RankPlace> places(identity_.size);
  for (uint32_t r = 0; r < identity_.size; ++r) places[r].rank = r;
  communicator_ =
      std::make_unique<MessageCommunicator>(identity_.rank, std::move(places), message_port(meeting));
  watch_ = std::make_unique<HeartbeatWatch>(*communicator_, launcher_, program_);
  if (meeting.communicator == CommunicatorChoice::host) require_one_host(*communicator_);
}

void RunRanks::agree(FunctionRef<std::map<std::string, std::string>()> facts) const {
  if (are_several()) require_agreement(*communicator_, facts());
}

void RunRanks::take_paths(TrainConfig& config) const {
  const std::span<const RankPlace> places =
      communicator_ != nullptr ? communicator_->places() : std::span<const RankPlace>();
  take_paths_of(seat_of(identity_.rank, places), config.terrace.nvme_share, config.placement);
}

void RunRanks::apply_to(TrainConfig& config) const {
  const auto refuse = [&](std::string what, std::string reason, std::string advice) {
    throw Error(ErrorKind::config, {fmt::format("cannot train with {} ranks", config.batch.ranks),
                                    std::move(what), std::move(reason), std::move(advice)});
  };
  if (config.batch.ranks != identity_.size)
    refuse("terrace.ranks",
           fmt::format("{} process{} started", identity_.size, identity_.size == 1 ? " was" : "es were"),
           fmt::format("start {} with `terrace launch -n {} -- train`, or leave the key out",
                       config.batch.ranks, config.batch.ranks));
  if (!are_several()) return;
  if (const std::optional<HostLayout> layout = layout_of(communicator_->places())) {
    config.batch.hosts = layout->hosts;
  } else {
    log_of_all().warning(
        "hosts have different numbers of ranks, or ranks are not numbered host by host: parameters and "
        "gradients cross to every rank of another host, and not once to each host; start as many ranks on "
        "every host, one host after the other");
  }
  leave_out_sub_groups_of_parts(config);
  config.placement.tier_name = tier_name_of({identity_.rank, identity_.size});
  config.ranks_on_host = ranks_on_host(identity_);
  take_processors_of_rank(*communicator_, config.terrace);
  if (!is_first()) config.monitor = {};
}

// Sub-groups are whole hosts. A run may go on with other numbers of ranks than the file is made for.
void RunRanks::leave_out_sub_groups_of_parts(TrainConfig& config) const {
  const uint32_t size = config.sub_group_ranks, per_host = config.batch.ranks / config.batch.hosts;
  if (size <= per_host || size % per_host == 0) return;
  config.sub_group_ranks = 0;
  log_of_all().warning(
      fmt::format("zero_optimization.mics_shard_size has no effect: it is {}, and hosts have {} ranks, "
                  "which it is no multiple of",
                  size, per_host));
}

int RunRanks::end_with(const Error& failure, int status) const {
  const std::optional<Error> death = watch_->death_behind(failure);
  if (communicator_ != nullptr) communicator_->leave(failure.in(program_.log().door()));
  if (!death) return watch_->end_with(failure, status);
  watch_->end_with_death(*death);
  return status;
}

}  // namespace terrace
