#include <terrace/offload/gradients/make_gradients.h>

#include <algorithm>
#include <utility>

#include <terrace/offload/gradients/borrowed_gradients.h>
#include <terrace/offload/gradients/gradients_in_host.h>
#include <terrace/offload/gradients/gradients_on_device.h>
#include <terrace/offload/landing/exchange_by_hosts.h>
#include <terrace/offload/landing/exchange_on_devices.h>
#include <terrace/offload/landing/exchange_with_all.h>
#include <terrace/offload/plan/host_slots.h>

namespace terrace {
namespace {

// Returns, per chunk, the host slot that holds its gradient; null if the gradient is spilled or the chunk
// frozen.
std::vector<std::byte*> host_slots(const GradientParts& parts) {
  const MemoryPlan& plan = parts.run.plan;
  std::vector<std::byte*> carved =
      carve_slots(parts.arena, plan.slot_bytes, plan.host_gradient_slots, "gradients");
  if (plan.host_accumulator_slots > 0)
    carved = carve_slots(parts.arena, plan.accumulator_slot_bytes, plan.host_accumulator_slots,
                         "gradient accumulators");
  std::vector<std::byte*> slots(parts.run.space.chunk_count(), nullptr);
  const std::vector<bool> spilled = spilled_gradients(parts.run.space, plan);
  size_t next = 0;
  for (uint32_t c = 0; c < parts.run.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!parts.run.is_trained(chunk) || spilled[c]) continue;
    slots[c] = plan.gradients_take_over ? parts.parameter_slots[c] : carved[next++];
  }
  return slots;
}

std::unique_ptr<GradientArithmetic> make_arithmetic(const GradientParts& parts) {
  const OffloadOptions& options = parts.run.options;
  std::span<std::byte> memory;
  if (parts.run.plan.gradient_sum_bytes > 0)
    memory = parts.arena.take(parts.run.plan.gradient_sum_bytes, "gradient sums");
  GradientSums sums(parts.run.shards, memory, options.dry);
  if (options.states == Placement::none && options.hooks.device_arithmetic != nullptr) {
    return std::make_unique<ArithmeticByDevice>(
        parts.run.space, std::move(sums), options, *options.hooks.device_arithmetic,
        DeviceSums(*options.hooks.device_arithmetic, parts.run.device, parts.work_memory, parts.run.watch));
  }
  return std::make_unique<ArithmeticByWorkers>(parts.run.space, std::move(sums), options, parts.run.workers,
                                               parts.run.instruction_set, parts.run.watch);
}

// How landings become the parts that are added: those of all ranks come together first.
std::unique_ptr<RankSum> make_sum(const GradientParts& parts) {
  const MemoryPlan& plan = parts.run.plan;
  const OffloadOptions& options = parts.run.options;
  if (options.hooks.communicator == nullptr) return std::make_unique<OwnSum>(parts.run.watch);
  const ExchangeRanks ranks{parts.run.shards,   *options.hooks.communicator, parts.run.watch,
                            rounds_of(options), options.ranks_overlap,       options.dry};
  const std::vector<std::byte*> incoming =
      carve_slots(parts.arena, plan.incoming_slot_bytes, plan.incoming_slots, "gradients of other ranks");
  if (exchange_on_devices(options)) {
    const ExchangeOnDevices::Memory memory{parts.run.device,
                                           parts.run.device.allocate_work_memory(plan.device_incoming_bytes),
                                           incoming, plan.share_bytes, plan.landing_slots};
    return std::make_unique<ExchangeOnDevices>(ranks, memory, parts.runs.most_runs());
  }
  if (!ranks.rounds.sums_on_hosts())
    return std::make_unique<ExchangeWithAll>(ranks, incoming, parts.runs.most_runs());
  const ExchangeByHosts::Summing summing{parts.run.workers,         parts.run.instruction_set,
                                         options.accumulation_type, plan.group_sum_bytes,
                                         plan.group_code_bytes,     plan.share_bytes};
  return std::make_unique<ExchangeByHosts>(ranks, summing, incoming, parts.runs.most_runs());
}

// So many gradients are on their way to their places at once; where there are more, the oldest one is waited
// for.
constexpr uint32_t kMostOnTheirWay = 64;

// A gradient that stays on the device, or is added there, passes through host memory for other ranks alone.
// One that is not added up goes straight to its place. Others pass through the landing slots.
std::vector<std::byte*> staging_memory(const GradientParts& parts, std::span<std::byte* const> landing) {
  const OffloadOptions& options = parts.run.options;
  const bool stays = options.states == Placement::none && options.hooks.communicator == nullptr;
  if (stays || options.gradients == GradientOrigin::borrowed) return {};
  if (!accumulates(options))
    return std::vector<std::byte*>(std::min(parts.run.space.chunk_count(), kMostOnTheirWay));
  return {landing.begin(), landing.end()};
}

std::vector<std::unique_ptr<GradientPlace>> make_places(const GradientParts& parts,
                                                        GradientArithmetic& arithmetic) {
  const RunContext& run = parts.run;
  const OffloadOptions& options = run.options;
  const AccumulationRules rules{options.accumulation_type, rounds_of(options), options.layer_major,
                                accumulates(options)};
  std::vector<std::unique_ptr<GradientPlace>> places;
  if (options.states == Placement::none) {
    places.push_back(std::make_unique<GradientsOnDevice>(run, parts.cache, arithmetic, rules));
  } else if (options.gradients == GradientOrigin::borrowed) {
    places.push_back(std::make_unique<BorrowedGradients>(run.space, arithmetic));
  } else {
    places.push_back(std::make_unique<GradientsInHost>(run.space, parts.cache, arithmetic, rules,
                                                       host_slots(parts), run.plan.gradients_take_over));
    if (parts.spill.store != nullptr)
      places.push_back(std::make_unique<GradientsOnNvme>(run, parts.arena, parts.spill, arithmetic, rules));
  }
  return places;
}

// What comes of other ranks passes through as many shares as all of them have.
std::vector<std::byte*> incoming_shares(const GradientParts& parts) {
  const MemoryPlan& plan = parts.run.plan;
  std::vector<std::byte*> shares;
  for (std::byte* const slot :
       carve_slots(parts.arena, plan.incoming_slot_bytes, plan.incoming_slots, "gradients of other ranks")) {
    for (uint32_t r = 0; r < parts.run.options.ranks; ++r) shares.push_back(slot + r * plan.share_bytes);
  }
  return shares;
}

// A thread of its own adds, with workers and waits that are not the step thread's.
std::unique_ptr<GradientStore> make_pulled_store(const GradientParts& parts) {
  const RunContext& run = parts.run;
  auto watch = std::make_unique<StepWatch>();
  std::unique_ptr<Workers> workers(new Workers(run.workers.beside()));
  const RunContext beside{run.space, run.shards,  run.options, run.plan, run.device,         *workers,
                          run.clock, run.account, *watch,      run.log,  run.instruction_set};
  const GradientParts adding{beside,     parts.arena, parts.cache,       parts.parameter_slots,
                             parts.runs, parts.spill, parts.work_memory, parts.pulls};
  GradientStore::Parts made;
  made.landing_slots =
      carve_slots(parts.arena, run.plan.landing_slot_bytes, run.plan.landing_slots, "landing gradients");
  made.arithmetic = make_arithmetic(adding);
  made.places = make_places(adding, *made.arithmetic);
  PulledGradients::Parts pulled{run, parts.cache, *parts.pulls, made.landing_slots, incoming_shares(parts)};
  return std::make_unique<GradientStore>(
      run.space, std::move(made),
      GradientStore::Adding{std::move(watch), std::move(workers), std::move(pulled)});
}

}  // namespace

std::unique_ptr<GradientStore> make_gradient_store(const GradientParts& parts) {
  if (parts.pulls != nullptr) return make_pulled_store(parts);
  const RunContext& run = parts.run;
  GradientStore::Parts made;
  made.landing_slots =
      carve_slots(parts.arena, run.plan.landing_slot_bytes, run.plan.landing_slots, "landing gradients");
  made.arithmetic = make_arithmetic(parts);
  made.places = make_places(parts, *made.arithmetic);
  const std::vector<std::byte*> memory = staging_memory(parts, made.landing_slots);
  const std::vector<DeviceSlot> handed = run.device.create_slots(
      run.plan.slot_bytes, run.plan.device_handed_slots, "gradients that are handed over");
  const size_t most_runs = accumulates(run.options) ? parts.runs.most_runs() : 1;
  made.staging = std::make_unique<GradientStaging>(
      run.space, run.device, parts.cache, GradientStaging::Slots{memory, handed, most_runs, run.options.dry},
      make_sum(parts));
  return std::make_unique<GradientStore>(run.space, std::move(made));
}

}  // namespace terrace
