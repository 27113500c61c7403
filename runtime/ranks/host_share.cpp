#include <terrace/runtime/ranks/host_share.h>

#include <algorithm>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/topology.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>

namespace terrace {
namespace {

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

}  // namespace

void share_host(TrainConfig& config, uint32_t ranks_on_host) {
  config.ranks_on_host = ranks_on_host;
  if (ranks_on_host > 1) take_processors(config.terrace, read_topology().part(0, ranks_on_host));
}

void take_processors_of_rank(Communicator& ranks, TerraceConfig& config) {
  const Topology all = read_topology();
  const SharedProcessors shared = shared_processors(ranks, all);
  const Topology part = all.part(shared.place, shared.count);
  take_processors(config, part);
  // Without rights to, ranks run where the system puts them, as all threads do that are too many.
  if (config.bind_threads && config.thread_count <= part.cpus.size() && part.cpus.size() < all.cpus.size())
    stay_on(part.cpus);
}

RankSeat seat_of(uint32_t rank, std::span<const RankPlace> places) {
  RankSeat seat{.host = own_place().host_name};
  if (places.empty()) return seat;
  const RankPlace& own = places[rank];
  seat.rank = rank;
  seat.local_rank = own.local_rank;
  seat.ranks_on_host = static_cast<uint32_t>(std::ranges::count(places, own.host, &RankPlace::host));
  return seat;
}

}  // namespace terrace
