#include <terrace/offload/gradients/make_gradients.h>

#include <terrace/offload/gradients/accumulated_in_host.h>
#include <terrace/offload/gradients/accumulated_on_device.h>
#include <terrace/offload/gradients/borrowed_gradients.h>
#include <terrace/offload/gradients/gradients_in_host.h>
#include <terrace/offload/gradients/gradients_on_device.h>
#include <terrace/offload/landing/exchange_by_hosts.h>
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
    return std::make_unique<DeviceGradients>(
        parts.run.space, std::move(sums), options, *options.hooks.device_arithmetic,
        DeviceSums(*options.hooks.device_arithmetic, parts.run.device, parts.work_memory, parts.run.watch));
  }
  return std::make_unique<WorkerGradients>(parts.run.space, std::move(sums), options, parts.run.workers,
                                           parts.run.instruction_set, parts.run.watch);
}

// The way of landings to accumulators. Null where they are added as they lie on the device.
std::unique_ptr<GradientStaging> make_staging(const GradientParts& parts,
                                              std::span<std::byte* const> landing) {
  const MemoryPlan& plan = parts.run.plan;
  const OffloadOptions& options = parts.run.options;
  if (options.hooks.communicator == nullptr) {
    if (options.states == Placement::none) return nullptr;
    return std::make_unique<StagedGradients>(parts.run.space, parts.run.device, parts.cache, landing,
                                             parts.runs.most_runs());
  }
  const GradientExchange::Ranks ranks{parts.run.shards, *options.hooks.communicator, rounds_of(options),
                                      options.ranks_overlap, options.dry};
  const std::vector<std::byte*> incoming =
      carve_slots(parts.arena, plan.incoming_slot_bytes, plan.incoming_slots, "gradients of other ranks");
  if (!ranks.rounds.sums_on_hosts())
    return std::make_unique<ExchangeWithAll>(ranks, parts.run.device, parts.cache, landing, incoming,
                                             parts.runs.most_runs());
  const ExchangeByHosts::Summing summing{parts.run.workers,         parts.run.instruction_set,
                                         options.accumulation_type, plan.group_sum_bytes,
                                         plan.group_code_bytes,     plan.share_bytes};
  return std::make_unique<ExchangeByHosts>(ranks, summing, parts.run.device, parts.cache, landing, incoming,
                                           parts.runs.most_runs());
}

}  // namespace

std::unique_ptr<GradientStore> make_gradient_store(const GradientParts& parts) {
  const OffloadOptions& options = parts.run.options;
  const AccumulationRules rules{options.accumulation_type, rounds_of(options), options.layer_major};
  std::vector<std::byte*> slots;
  if (options.states != Placement::none && options.gradients != GradientOrigin::borrowed)
    slots = host_slots(parts);
  std::vector<std::byte*> landing =
      carve_slots(parts.arena, parts.run.plan.slot_bytes, parts.run.plan.landing_slots, "landing gradients");
  std::unique_ptr<GradientArithmetic> arithmetic = make_arithmetic(parts);
  if (options.states == Placement::none && accumulates(options)) {
    return std::make_unique<AccumulatedOnDevice>(parts.run.space, parts.run.plan, parts.run.device,
                                                 parts.cache, std::move(arithmetic), landing, rules,
                                                 make_staging(parts, landing));
  }
  if (options.states == Placement::none) {
    return std::make_unique<GradientsOnDevice>(parts.run.space, parts.cache, std::move(arithmetic),
                                               std::move(landing));
  }
  if (options.gradients == GradientOrigin::borrowed)
    return std::make_unique<BorrowedGradients>(parts.run.space, std::move(arithmetic), std::move(landing));
  GradientsInHost::Places places{std::move(slots), parts.spilled, landing};
  if (accumulates(options)) {
    return std::make_unique<AccumulatedInHost>(parts.run.shards, parts.run.device, parts.cache,
                                               std::move(arithmetic), std::move(places), rules,
                                               make_staging(parts, landing));
  }
  return std::make_unique<GradientsInHost>(parts.run.space, parts.run.device, parts.cache,
                                           std::move(arithmetic), std::move(places),
                                           parts.run.plan.gradients_take_over);
}

}  // namespace terrace
