#include <terrace/offload/step/least_traffic.h>

#include <algorithm>

#include <terrace/offload/plan/least_fetches.h>
#include <terrace/offload/plan/rank_bytes.h>

namespace terrace {
namespace {

// Returns how many steps in a row are looked at if a chunk may stay on the device from one to the next. A
// long schedule gets fewer, because the time grows faster than the number of uses.
uint32_t row_of(const Schedule& schedule) {
  constexpr uint64_t kLongest = 16, kMostUses = 40'000;
  uint64_t uses = 1;
  for (const ScheduledUse& use : schedule.uses()) uses += use.chunks.size();
  return static_cast<uint32_t>(std::clamp<uint64_t>(kMostUses / uses, 1, kLongest));
}

class LeastTraffic {
 public:
  LeastTraffic(const RunContext& run, const StateHomes& homes)
      : run_(run),
        homes_(homes),
        params_move_(!run.params_stay_on_device()),
        params_below_(run.params_live_below()),
        states_move_(run.options.states != Placement::none) {}

  TrafficBound of(const Schedule& schedule, StepStart start) {
    for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
      if (!run_.is_trained(ChunkId{c})) continue;
      add_links(ChunkId{c}, run_.plan.device_side[c]);
      add_spilled_gradient(ChunkId{c});
      if (homes_.params.is_in_memory(ChunkId{c})) continue;
      bound_.param_write_bytes += run_.shards.param_bytes(ChunkId{c});
      if (needs_old()) bound_.param_read_bytes += run_.shards.param_bytes(ChunkId{c});
    }
    bound_.record_read_bytes = bound_.record_write_bytes = homes_.records.streamed_bytes();
    if (params_move_) add_fetches(schedule, start);
    if (run_.options.ranks > 1) add_ranks(schedule);
    return bound_;
  }

 private:
  // Of the shares of other hosts that are kept below the device, and copied to it with every fetch.
  uint64_t kept_bytes(ChunkId chunk) const {
    if (index_of(chunk) >= run_.plan.kept_gathers) return 0;
    uint64_t bytes = 0;
    for (uint32_t host = 0; host < layout_.hosts; ++host)
      bytes += is_kept_of(host) ? run_.shards.of(chunk, layout_.rank(host, place())).elements() : 0;
    return bytes * bytes_of(run_.space.section_of(chunk).type);
  }
  RankBytes gathered(ChunkId chunk, bool comes_anew) const {
    const uint32_t rank = run_.shards.rank();
    return gather_bytes(run_.shards, layout_, chunk, run_.options.parameter_bits,
                        comes_anew ? layout_.across_hosts_of(rank)
                                   : layout_.across_sub_group_of(rank, run_.options.sub_group_hosts));
  }
  bool is_kept_of(uint32_t host) const {
    const uint32_t rank = run_.shards.rank();
    return !layout_.across_sub_group_of(rank, run_.options.sub_group_hosts).has(layout_.rank(host, place()));
  }
  uint32_t place() const { return layout_.place_on_host(run_.shards.rank()); }
  // An update of compact state reads the old parameters.
  bool needs_old() const { return run_.is_compact() && states_move_; }
  uint64_t gradient_bytes(ChunkId chunk) const {
    return run_.shards.elements(chunk) * bytes_of(homes_.gradients.type(chunk));
  }

  // Adds the chunk's gradient and update on the links between host and device. `on_device`: the device
  // updates the chunk, so its records and gradients cross as well.
  void add_links(ChunkId chunk, bool on_device) {
    add_gradient(chunk);
    if (run_.is_callers(chunk)) return;
    const uint64_t bytes = run_.shards.param_bytes(chunk);
    if (!states_move_ && params_below_) bound_.d2h_bytes += bytes;
    if (on_device) {
      const uint64_t record_bytes = run_.shards.own(chunk).tile_count * run_.plan.record_layout.tile_bytes();
      const uint64_t old_bytes = run_.is_compact() && params_below_ ? bytes : 0;
      bound_.h2d_bytes += record_bytes + old_bytes + gradient_bytes(chunk);
      bound_.d2h_bytes += record_bytes + (params_below_ ? bytes : 0);
    }
    if (states_move_ && !params_below_ && !on_device) bound_.h2d_bytes += bytes;
    if (needs_old() && !params_below_ && !on_device) bound_.d2h_bytes += bytes;
  }

  // Every micro-batch's gradient leaves the device for states below it, and for other ranks. From device to
  // device what is added to the own share leaves, and nothing where that is added there. One that is handed
  // over is in host memory at first, without the padding of the flat space.
  void add_gradient(ChunkId chunk) {
    const uint64_t passes = rounds_of(run_.options).count();
    const bool leaves = states_move_ || run_.options.ranks > 1;
    if (exchange_on_devices(run_.options)) {
      if (states_move_)
        bound_.d2h_bytes +=
            bytes_added(run_.shards, rounds_of(run_.options), chunk, run_.options.accumulation_type);
    } else if (run_.options.gradients == GradientOrigin::leases) {
      if (leaves) bound_.d2h_bytes += run_.space.param_bytes(chunk) * passes;
    } else if (!leaves) {
      bound_.h2d_bytes +=
          run_.space.elements_in_use(chunk) * bytes_of(run_.space.section_of(chunk).type) * passes;
    }
  }

  // A spilled gradient is written in every micro-batch, and read in every later one and by the update. If
  // micro-batches are open together, it is written once, after the last, and read once by the update.
  void add_spilled_gradient(ChunkId chunk) {
    if (homes_.gradients.is_held(chunk)) return;
    const uint32_t passes = run_.options.layer_major ? 1 : rounds_of(run_.options).count();
    const uint64_t bytes = gradient_bytes(chunk) * sums_of_accumulator(run_.options);
    bound_.gradient_write_bytes += bytes * passes;
    bound_.gradient_read_bytes += bytes * passes;
  }

  void add_fetches(const Schedule& schedule, StepStart start) {
    // An update of states on the device leaves the new parameters there.
    const auto after_step = [&](ChunkId chunk) {
      if (!run_.is_trained(chunk)) return AfterStep::kept;
      return states_move_ ? AfterStep::renewed : AfterStep::made;
    };
    const bool none_is_kept = std::ranges::all_of(run_.space.sections(), &Section::trainable);
    const bool comes_fresh = start == StepStart::behind_update;
    const auto read = [&](ChunkId chunk, bool is_first) -> uint64_t {
      const bool is_fresh =
          comes_fresh && is_first && run_.is_trained(chunk) && homes_.gradients.is_held(chunk);
      return is_fresh || homes_.params.is_in_memory(chunk) ? 0 : run_.shards.param_bytes(chunk);
    };
    // Parameters that are read cross the host's link too, unless the device reads them by itself. A share on
    // the device crosses none.
    const bool past_host = run_.options.reads_past_host;
    const auto copied = [&](ChunkId chunk, bool is_first) -> uint64_t {
      const uint64_t kept = run_.options.gathers_by_copies ? 0 : kept_bytes(chunk);
      if (!params_below_) return kept;
      return kept + run_.shards.param_bytes(chunk) - (past_host ? read(chunk, is_first) : 0);
    };
    const auto least = [&](const auto& cost) {
      return least_fetch_cost(schedule, run_.plan.device_slots, run_.space.chunk_count(),
                              none_is_kept ? 1 : row_of(schedule), {after_step, cost});
    };
    bound_.h2d_bytes += least(copied);
    const uint64_t read_bytes = least(read);
    bound_.direct_read_bytes = past_host ? read_bytes : 0;
    bound_.param_read_bytes += read_bytes;
  }

  // A chunk is gathered whenever it comes to the device, and where it lives there after its update.
  void add_ranks(const Schedule& schedule) {
    const StepRounds rounds = rounds_of(run_.options);
    const auto after_step = [&](ChunkId chunk) {
      return run_.is_trained(chunk) ? AfterStep::renewed : AfterStep::kept;
    };
    const bool none_is_kept = std::ranges::all_of(run_.space.sections(), &Section::trainable);
    const auto least = [&](const auto& cost) {
      return least_fetch_cost(schedule, run_.plan.device_slots, run_.space.chunk_count(),
                              none_is_kept ? 1 : row_of(schedule), {after_step, cost});
    };
    // What is kept of a chunk crosses once for each of its updates.
    const auto least_gathered = [&](uint64_t RankBytes::*part) {
      return least([&](ChunkId chunk, bool is_first) {
        const bool comes_anew = kept_bytes(chunk) == 0 || (is_first && run_.is_trained(chunk));
        return gathered(chunk, comes_anew).*part;
      });
    };
    if (params_move_) {
      bound_.gather_in_bytes = least_gathered(&RankBytes::in);
      bound_.gather_out_bytes = least_gathered(&RankBytes::out);
    }
    if (params_move_ && rounds.hosts > 1) {
      bound_.host_gather_in_bytes = least_gathered(&RankBytes::between_in);
      bound_.host_gather_out_bytes = least_gathered(&RankBytes::between_out);
    }
    const bool by_copies = run_.options.gathers_by_copies;
    if (by_copies && params_move_)
      bound_.h2d_bytes += least([&](ChunkId chunk, bool) {
        return run_.space.param_bytes(chunk) - run_.shards.param_bytes(chunk);
      });
    if (by_copies && has_shares_on_device(run_.options))
      bound_.d2h_bytes += least([&](ChunkId chunk, bool) { return run_.shards.param_bytes(chunk); });
    for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
      if (run_.is_trained(ChunkId{c})) add_ranks(ChunkId{c}, rounds);
    }
  }

  void add_ranks(ChunkId chunk, const StepRounds& rounds) {
    if (!params_move_) {
      const RankBytes bytes = gathered(chunk, true);
      bound_.gather_in_bytes += bytes.in;
      bound_.gather_out_bytes += bytes.out;
      bound_.host_gather_in_bytes += bytes.between_in;
      bound_.host_gather_out_bytes += bytes.between_out;
    }
    const RankBytes exchanged = exchange_bytes(run_.shards, rounds, chunk, run_.options.accumulation_type);
    bound_.exchange_in_bytes += exchanged.in;
    bound_.exchange_out_bytes += exchanged.out;
    bound_.host_exchange_in_bytes += exchanged.between_in;
    bound_.host_exchange_out_bytes += exchanged.between_out;
    add_copies_for_ranks(chunk, rounds);
  }

  // New parameters that live on the device leave it for the other ranks, whose own come there; and every part
  // of a gradient comes to an accumulator that is there.
  void add_copies_for_ranks(ChunkId chunk, const StepRounds& rounds) {
    const uint64_t own = run_.shards.param_bytes(chunk);
    const bool leave = !params_move_ && run_.options.gathers_by_copies;
    if (leave) bound_.h2d_bytes += run_.space.param_bytes(chunk) - own;
    if (leave) bound_.d2h_bytes += own;
    if (!states_move_ && run_.options.exchanges_by_copies && !exchange_on_devices(run_.options))
      bound_.h2d_bytes += bytes_added(run_.shards, rounds, chunk, run_.options.accumulation_type);
  }

  const RunContext& run_;
  const HostLayout layout_ = rounds_of(run_.options).layout();
  const StateHomes& homes_;
  const bool params_move_;   // to the device when they are needed
  const bool params_below_;  // they have their home below it
  const bool states_move_;
  TrafficBound bound_;
};

}  // namespace

TrafficBound least_traffic(const RunContext& run, const StateHomes& homes, const Schedule& schedule,
                           StepStart start) {
  return LeastTraffic(run, homes).of(schedule, start);
}

}  // namespace terrace
