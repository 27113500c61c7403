#include <terrace/offload/offload_report.h>

#include <terrace/offload/offloader_rooms.h>
#include <terrace/offload/step/least_traffic.h>

namespace terrace {

OffloadCounters OffloadReport::counters() const {
  OffloaderRooms& r = rooms_;
  OffloadCounters counters = r.counters;
  r.updates.count(counters);
  r.fetches.count(counters);
  r.commits.count(counters);
  counters.h2d_bytes += r.params.h2d_bytes() + r.params.publication().h2d_bytes() + r.gradients->h2d_bytes();
  counters.d2h_bytes += r.gradients->d2h_bytes() + r.params.old().d2h_bytes();
  counters.param_read_bytes += r.params.nvme_read_bytes();
  counters.direct_read_bytes = r.params.direct_read_bytes();
  counters.cache_read_bytes = r.records.entered_bytes();
  counters.cache_write_bytes = r.records.left_bytes();
  counters.gradient_read_bytes += r.gradients->landing_read_bytes();
  counters.gradient_write_bytes = r.gradients->landing_write_bytes();
  const RankBytes gathered = r.gathers->moved();
  counters.gather_in_bytes = gathered.in;
  counters.gather_out_bytes = gathered.out;
  counters.host_gather_in_bytes = gathered.between_in;
  counters.host_gather_out_bytes = gathered.between_out;
  counters.h2d_bytes += r.gathers->h2d_bytes();
  counters.d2h_bytes += r.gathers->d2h_bytes();
  RankBytes exchanged = r.gradients->moved();
  exchanged += r.updates.moved();
  counters.exchange_in_bytes = exchanged.in;
  counters.exchange_out_bytes = exchanged.out;
  counters.host_exchange_in_bytes = exchanged.between_in;
  counters.host_exchange_out_bytes = exchanged.between_out;
  if (r.activations != nullptr) {
    counters.activation_d2h_bytes = r.activations->d2h_bytes();
    counters.activation_h2d_bytes = r.activations->h2d_bytes();
    counters.activation_read_bytes = r.activations->read_bytes();
    counters.activation_write_bytes = r.activations->write_bytes();
    counters.activation_wait_ns = r.activations->wait_ns();
  }
  if (r.saved != nullptr) {
    counters.activation_d2h_bytes += r.saved->d2h_bytes();
    counters.activation_h2d_bytes += r.saved->h2d_bytes();
    counters.activation_read_bytes += r.saved->read_bytes();
    counters.activation_write_bytes += r.saved->write_bytes();
    counters.activation_wait_ns += r.saved->wait_ns();
  }
  counters.eviction_count = r.cache.eviction_count();
  counters.h2d_busy_ns = r.device.h2d_busy_ns();
  counters.d2h_busy_ns = r.device.d2h_busy_ns();
  if (r.tiers.tier() != nullptr) counters.disk_busy_ns = r.tiers.tier()->balancer().busy_ns();
  counters.gather_wait_ns = r.watch.rank_wait_ns(RankWait::gather);
  counters.exchange_wait_ns = r.watch.rank_wait_ns(RankWait::exchange);
  counters.ballot_wait_ns = r.watch.rank_wait_ns(RankWait::ballot);
  counters.time = r.account.parts();
  return counters;
}

TrafficBound OffloadReport::traffic_bound(StepStart start) const {
  return least_traffic(rooms_.run, rooms_.homes, rooms_.training_cursor.schedule(), start);
}

TrafficBound OffloadReport::traffic_bound() const {
  return traffic_bound(rooms_.updates.mode() == UpdateMode::next_forward ? StepStart::behind_update
                                                                         : StepStart::at_rest);
}

const Schedule& OffloadReport::schedule() const {
  return rooms_.training_cursor.schedule();
}

std::span<const ChunkTimes> OffloadReport::last_update_times() const {
  return rooms_.updates.last_times();
}

uint64_t OffloadReport::tier_file_bytes() const {
  const TierStores& tiers = rooms_.tiers;
  uint64_t bytes = 0;
  for (const BlockStore* store : {tiers.params(), tiers.frozen(), tiers.records(), tiers.copied(),
                                  tiers.gradients(), tiers.activations()}) {
    if (store != nullptr) bytes += store->file_bytes();
  }
  if (rooms_.saved != nullptr) bytes += rooms_.saved->use().file_bytes;
  return bytes;
}

std::vector<NvmePathUse> OffloadReport::nvme_paths() const {
  std::vector<NvmePathUse> paths;
  TierSpace* const tier = rooms_.tiers.tier();
  if (tier == nullptr) return paths;
  const std::vector<PathUse> uses = tier->balancer().uses();
  const std::vector<double> rates = tier->balancer().rates();
  for (size_t p = 0; p < uses.size(); ++p)
    paths.push_back({tier->paths()[p].path.string(), uses[p].bytes, uses[p].busy_ns, rates[p]});
  return paths;
}

const StepWatch& OffloadReport::watch() const {
  return rooms_.watch;
}

const TensorStates& OffloadReport::states() const {
  return rooms_.states;
}

}  // namespace terrace
