#include "train/run_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/topology.h>
#include <terrace/comm/agreement/rank_agreement.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/ports/mpi/mpi_plugin.h>
#include <terrace/comm/ports/socket/socket_port.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/train/rank_setup.h>

#include "command_line.h"

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

MakeMessagePort message_port(const RankIdentity& identity, const Environment& variables,
                             const TerraceConfig& config, Console& console) {
  const bool has_mpi = starts_with_mpi(identity.launcher);
  if (config.communicator == CommunicatorChoice::mpi && !has_mpi)
    refuse_communicator(
        "mpi", fmt::format("{} has started them, and no launcher of MPI", name_of(identity.launcher)),
        "start them with mpirun or srun, or leave the key out");
  if (has_mpi && config.communicator != CommunicatorChoice::host) return load_mpi(own_mpi_plugin());
  if (has_mpi && !identity.rendezvous)
    refuse_communicator("host", fmt::format("{} does not say where sockets meet", name_of(identity.launcher)),
                        "set TERRACE_MEET to HOST:PORT or the path of a socket, or leave the key out");
  SocketRendezvous rendezvous = rendezvous_of(identity, variables);
  rendezvous.timeout = std::chrono::seconds(config.rank_timeout_seconds);
  rendezvous.warn = [&console](const std::string& text) { console.warning(text); };
  return socket_port(rendezvous);
}

std::unique_ptr<MessageCommunicator> meet(const RankIdentity& identity, const Environment& variables,
                                          const TerraceConfig& config, Console& console) {
  std::vector<RankPlace> places(identity.size);
  for (uint32_t r = 0; r < identity.size; ++r) places[r].rank = r;
  return std::make_unique<MessageCommunicator>(identity.rank, std::move(places),
                                               message_port(identity, variables, config, console));
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

// How the ranks meet. What is wrong with a configuration is said when they have met, and then once; until
// then the flags by themselves count.
TerraceConfig config_to_meet_by(TrainFlags flags) {
  for (const bool with_file : {true, false}) {
    if (!with_file) flags.config.clear();
    try {
      return resolve_config(flags).terrace;
    } catch (const Error&) {
      // It is refused again by whoever trains.
    }
  }
  return {};
}

// What a rank has of the processors that some ranks of its host may use alike. A launcher may have divided
// them already.
struct SharedProcessors {
  size_t place = 0;  // among those ranks
  size_t count = 1;
};

SharedProcessors shared_processors(Communicator& ranks, const Topology& mine) {
  std::vector<uint32_t> ids;
  for (const Cpu& cpu : mine.cpus) ids.push_back(cpu.id);
  const uint64_t hash = checksum_of(std::as_bytes(std::span(ids)));
  const std::vector<uint64_t> hashes = RankVotes(&ranks).of_all(hash);
  const std::span<const RankPlace> places = ranks.places();
  SharedProcessors shared{0, 0};
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    if (hashes[r] != hash || places[r].host != places[ranks.rank()].host) continue;
    shared.place += r < ranks.rank() ? 1 : 0;
    ++shared.count;
  }
  return shared;
}

// One thread for each processor of the part, unless the configuration says how many.
void take_processors(TerraceConfig& config, const Topology& part) {
  if (config.thread_count == 0) config.thread_count = static_cast<uint32_t>(part.default_thread_count());
}

// Every rank records its own trace (StepRecording).
void keep_what_every_rank_has(TrainFlags& flags) {
  flags.log.clear(), flags.report.clear(), flags.record_schedule.clear();
  if (flags.trace.empty()) flags.trace_memory.clear();  // that of the report
  flags.decisions.clear(), flags.decisions_limit_bytes.reset();
  flags.no_control = true;
}

}  // namespace

void share_host(TrainConfig& config, uint32_t ranks_on_host) {
  config.ranks_on_host = ranks_on_host;
  if (ranks_on_host > 1) take_processors(config.terrace, read_topology().part(0, ranks_on_host));
}

void require_same_run(const TrainerOptions& options, const TrainFlags& flags, const TrainingData& data) {
  std::map<std::string, std::string> facts = facts_of_run(options);
  const auto given = [](const std::string& value) { return value.empty() ? "not given" : value; };
  facts["the version of Terrace"] = TERRACE_VERSION;
  facts["the hash of the data"] = fmt::format("{:016x}", data.fingerprint());
  facts["the data's tokens to train on"] = std::to_string(data.train_token_count());
  facts["--save"] = flags.save.empty() ? "not given" : "given";  // one folder may have two names
  facts["--resume"] = given(flags.resume);
  facts["--fresh"] = flags.fresh ? "given" : "not given";
  facts["--save-every"] = std::to_string(flags.save_every);
  facts["--eval-every"] = std::to_string(flags.eval_every);
  facts["--eval-samples"] = std::to_string(flags.eval_samples);
  require_agreement(*options.communicator, facts);
}

RunRanks::RunRanks(TrainFlags& flags, Console& console)
    : flags_(flags),
      console_(console),
      variables_(environment_from(environ)),
      identity_(identify_rank(variables_)),
      launcher_(reach_launcher()) {
  if (variables_.contains(kLauncherPlaces)) early_end_.emplace(launcher_);
  if (!are_several()) return;
  flags.ranks_started = identity_.size;
  flags.launcher = name_of(identity_.launcher);
  if (is_first()) return;
  console.speak_for(text_of_ranks({&identity_.rank, 1}));
  keep_what_every_rank_has(flags);
}

LauncherLink RunRanks::reach_launcher() const {
  std::string reason;
  LauncherLink link = LauncherLink::of_rank(variables_, identity_.rank, identity_.size, reason);
  if (!reason.empty())
    console_.warning(fmt::format(
        "rank {} cannot reach `terrace launch` ({}): where it dies, the launcher may not learn that a rank "
        "has died, and then the run does not go on by itself",
        identity_.rank, reason));
  return link;
}

void RunRanks::join() {
  if (!are_several()) return;
  join(config_to_meet_by(flags_));
}

void RunRanks::join(const TerraceConfig& config) {
  communicator_ = meet(identity_, variables_, config, console_);
  watch_ = std::make_unique<RankWatch>(*communicator_, launcher_, console_);
  if (config.communicator == CommunicatorChoice::host) require_one_host(*communicator_);
}

int RunRanks::refuse(const Error& failure) {
  constexpr uint64_t kSeconds = 5;  // where others have another command line, they may never come
  TrainFlags flags;
  TerraceConfig config;
  config.rank_timeout_seconds = kSeconds;
  Console console;
  RunRanks ranks(flags, console);
  try {
    if (ranks.are_several()) ranks.join(config);
  } catch (const Error&) {
    // Each says it by itself.
  }
  return ranks.end_with(failure);
}

void RunRanks::take_paths(TrainConfig& config) const {
  RankSeat seat{.host = own_place().host_name};
  if (are_several()) {
    const std::span<const RankPlace> places = communicator_->places();
    const RankPlace& own = places[identity_.rank];
    seat.rank = identity_.rank;
    seat.local_rank = own.local_rank;
    seat.ranks_on_host = static_cast<uint32_t>(std::ranges::count(places, own.host, &RankPlace::host));
  }
  take_paths_of(seat, config.terrace.nvme_share, config.placement);
}

void RunRanks::apply_to(TrainerOptions& options) const {
  TrainConfig& config = options.config;
  const auto refuse = [&](std::string what, std::string reason, std::string advice) {
    throw Error(ErrorKind::config, {fmt::format("cannot train with {} ranks", config.batch.ranks),
                                    std::move(what), std::move(reason), std::move(advice)});
  };
  if (config.batch.ranks != identity_.size)
    refuse("terrace.ranks",
           fmt::format("{} process{} started", identity_.size, identity_.size == 1 ? " was" : "es were"),
           fmt::format("start {} with `terrace launch -n {} -- train`, or leave the key out",
                       config.batch.ranks, config.batch.ranks));
  config.batch.launched_gradient_group = launched_gradient_group(variables_);
  if (!are_several()) return;
  options.communicator = communicator_.get();
  if (const std::optional<HostLayout> layout = layout_of(communicator_->places())) {
    config.batch.hosts = layout->hosts;
  } else if (is_first()) {
    console_.warning(
        "hosts have different numbers of ranks, or ranks are not numbered host by host: parameters and "
        "gradients cross to every rank of another host, and not once to each host; start as many ranks on "
        "every host, one host after the other");
  }
  leave_out_sub_groups_of_parts(config);
  config.placement.tier_name = tier_name_of({identity_.rank, identity_.size});
  config.ranks_on_host = ranks_on_host(identity_);
  const Topology all = read_topology();
  const SharedProcessors shared = shared_processors(*communicator_, all);
  const Topology part = all.part(shared.place, shared.count);
  take_processors(config.terrace, part);
  // Without rights to, ranks run where the system puts them, as all threads do that are too many.
  if (config.terrace.bind_threads && config.terrace.thread_count <= part.cpus.size() &&
      part.cpus.size() < all.cpus.size())
    stay_on(part.cpus);
  if (!is_first()) config.monitor = {};
}

// Sub-groups are whole hosts. After deaths hosts may have other numbers of ranks than the file is made for.
void RunRanks::leave_out_sub_groups_of_parts(TrainConfig& config) const {
  const uint32_t size = config.sub_group_ranks, per_host = config.batch.ranks / config.batch.hosts;
  if (size <= per_host || size % per_host == 0) return;
  config.sub_group_ranks = 0;
  if (is_first())
    console_.warning(
        fmt::format("zero_optimization.mics_shard_size has no effect: it is {}, and hosts have {} ranks, "
                    "which it is no multiple of",
                    size, per_host));
}

std::unique_ptr<RankWatch::Following> RunRanks::follow(Trainer& trainer) const {
  return watch_ != nullptr ? watch_->follow(trainer) : nullptr;
}

std::optional<Error> RunRanks::death_behind(const Error& failure) const {
  return watch_ != nullptr ? watch_->death_behind(failure) : std::nullopt;
}

int RunRanks::end_with(const Error& failure) const {
  console_.end_progress();
  const int status = status_of_refusal(failure);
  if (watch_ == nullptr) {
    is_first() ? print_error(failure) : console_.error(failure.what());
    return status;
  }
  const std::optional<Error> death = death_behind(failure);
  communicator_->leave(failure.what());
  if (!death) return watch_->end_with(failure, status);
  watch_->say_death(*death);
  watch_->leave();
  return status;
}

}  // namespace terrace
