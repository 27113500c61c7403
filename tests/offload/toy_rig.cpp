#include "offload/toy_rig.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/dry/dry_device.h>

#include "support/offloaders.h"

namespace terrace {
namespace {

template <RigKind kKind>
uint64_t host_budget_of(const ToyCase<kKind>& c, const FlatSpace& space, const std::vector<TensorUse>& uses,
                        OffloadOptions options, const MemoryPlan& roomy) {
  if (c.cached_parameters) {
    options.host_budget_bytes = roomy.host_minimum_bytes;
    while (plan_memory(space, uses, options).host_param_slots < *c.cached_parameters)
      options.host_budget_bytes += roomy.slot_bytes;
    return options.host_budget_bytes;
  }
  if (c.host_budget) return c.host_budget(roomy);
  const uint32_t quarters = c.spills ? 0 : c.tight ? c.cached_quarters : 2;
  const uint64_t bytes =
      roomy.host_minimum_bytes + (roomy.host_bytes - roomy.host_minimum_bytes) * quarters / 4;
  const bool holds =
      c.holds_gradients || (c.parameters == Placement::none && c.mode != UpdateMode::after_backward);
  return holds ? std::max(bytes, roomy.host_holding_bytes) : bytes;
}

template <RigKind kKind>
std::unique_ptr<Device> device_of(const ToyCase<kKind>& c, uint64_t budget_bytes) {
  if (c.dry) return std::make_unique<DryDevice>(budget_bytes);
  if (c.make_device) return c.make_device(budget_bytes, c.strict);
  return std::make_unique<SimulatedDevice>(
      SimulatedDeviceOptions{budget_bytes, c.strict, c.h2d_bytes_per_second, c.d2h_bytes_per_second});
}

template <RigKind kKind>
std::vector<TensorSpec> specs_of(const ToyCase<kKind>& c, std::vector<std::vector<std::byte>>& memory) {
  std::vector<TensorSpec> specs = toy_tensors(c);
  if (c.callers) {
    const bool all = c.gradients == GradientOrigin::borrowed || c.layout.master == MasterForm::parameter;
    testing::give_to_caller(specs, all ? testing::Callers::all : testing::Callers::every_second, memory);
  }
  return specs;
}

}  // namespace

template <RigKind kKind>
std::vector<TensorSpec> toy_tensors(const ToyCase<kKind>& c) {
  std::vector<TensorSpec> list = toy::tensors(c.type, c.with_frozen, c.layer_major ? 1 : 2);
  if (c.unused_columns == 0) return list;
  list.push_back({"unused", {300, c.unused_columns}, c.type, true, 0, 1});
  if (c.with_frozen) list.push_back({"frozen_unused", {500, 1001}, c.type, false, 0, 1});
  return list;
}

template <RigKind kKind>
OffloadOptions toy_options(const ToyCase<kKind>& c, const FlatSpace& space,
                           const std::vector<TensorUse>& uses,
                           const std::vector<std::filesystem::path>& folders) {
  OffloadOptions options;
  options.parameters = c.parameters;
  options.states = c.states;
  for (const std::filesystem::path& folder : folders) options.state_paths.push_back({folder});
  options.parameter_paths = options.state_paths;
  options.tier_name = c.tier_name;
  options.micro_batches = c.accumulation;
  options.gradient_group = c.gradient_group;
  options.gradient_bits = c.gradient_bits;
  options.parameter_bits = c.parameter_bits;
  options.sub_group_hosts = c.sub_group_hosts;
  options.layer_major = c.layer_major;
  options.gradients = c.gradients;
  options.unused_gradients = c.unused;
  options.accumulation_type = c.accumulation_type;
  options.record_layout = c.layout;
  options.policy = c.policy;
  options.io.kind = c.engine;
  options.durable = c.durable;
  options.retained_commits = c.retained;
  options.tier_start = c.start;
  options.discard_commits = c.discard;
  options.hooks.decorate_engine = c.decorate;
  options.hooks.file_events = c.events;
  options.hooks.clock = c.clock;
  options.hooks.decisions = c.decisions;
  options.hooks.step_events = c.step_events;
  testing::set_ranks(options, c.ranks);
  options.rank_exchange = c.exchange;
  options.exchanges_by_copies = c.by_copies;
  options.gathers_by_copies = c.by_copies && !c.gather_on_devices;
  options.ranks_overlap = c.overlap;
  options.compare_ranks_every_steps = c.compare_ranks_every_steps;
  options.divides_parameters = c.divided;
  options.processor_share = c.processor_share;
  options.reads_past_host = c.reads_past_host;
  options.verify_checksums = !c.reads_past_host;
  const MemoryPlan roomy = testing::plan_roomy(options, space, uses);
  options.lock_host_memory = c.lock_host_memory;
  options.device_budget_bytes = c.tight ? roomy.device_minimum_bytes : useful_device_bytes(roomy);
  options.host_budget_bytes = host_budget_of(c, space, uses, options, roomy);
  options.dry = c.dry;
  return options;
}

template <RigKind kKind>
ToyRig::ToyRig(const ToyCase<kKind>& c, const std::vector<std::filesystem::path>& folders)
    : layer_major(c.layer_major),
      accumulation(c.accumulation),
      kind(c.kind),
      clip_norm(c.clip_norm),
      specs(specs_of(c, caller_memory)),
      space(specs, c.chunk_elements),
      workers(c.threads) {
  const uint32_t ranks = c.ranks != nullptr ? c.ranks->size() : 1;
  std::vector<TensorUse> uses = toy::trace(specs, StepRounds{c.accumulation, ranks}.count(), c.layer_major);
  uses = testing::managed_trace(uses, specs);
  const testing::Held held = {{TensorId{0}}, {TensorId{0}}};
  if (c.nested) uses = testing::nested_trace(uses, held);
  options = toy_options(c, space, uses, folders);
  device = device_of(c, options.device_budget_bytes);
  offloader = std::make_unique<Offloader>(space, options, c.announced ? uses : std::vector<TensorUse>(),
                                          *device, workers, log);
  access = offloader.get();
  if (c.nested) access = &nesting.emplace(*access, held);
  if (c.gradients != GradientOrigin::leases) hand_over();
  if (c.dry) {
    offloader->state().initialise(
        [](TensorId, uint64_t, std::span<float>) { FAIL() << "values are computed"; });
  } else if (kKind != RigKind::checkpoints && c.start != TierStart::resume) {
    toy::initialise(*offloader);
  }
  offloader->set_update_mode(c.mode);
}

void ToyRig::hand_over() {
  access = offloader.get();
  if (nesting) access = &*nesting;
  access = &owning.emplace(*access, specs);
  access = &handing.emplace(*access, specs, options.gradients == GradientOrigin::borrowed,
                            [this](TensorId tensor, std::span<const std::byte> gradient) {
                              offloader->hand_over_gradient(tensor, gradient);
                            });
}

UpdateResult ToyRig::step(uint64_t number) {
  return step(number, rounds_of(options).count(), "", 1, clip_norm);
}

UpdateResult ToyRig::step(uint64_t number, uint32_t micro_batches, const std::string& skip, float loss_scale,
                          double clip) {
  return step_skipping(number, std::vector<std::string>(micro_batches, skip), loss_scale, clip);
}

UpdateResult ToyRig::step_skipping(uint64_t number, const std::vector<std::string>& skips, float loss_scale,
                                   double clip) {
  const std::vector<OptimizerSettings> groups = toy::groups(kind);
  const UpdateSettings settings = {groups, number, clip, loss_scale};
  const StepRounds rounds = rounds_of(options);
  offloader->begin_step();
  offloader->announce_update(settings);
  if (layer_major) {
    toy::run_layer_major(*access, specs, skips, loss_scale, rounds, options.rank);
    if (handing) handing->end_micro_batch();
    offloader->end_micro_batch();
  }
  for (uint32_t m = 0; m < skips.size() && !layer_major; ++m) {
    if (options.dry) {
      toy::lease_micro_batch(*access, specs, m);
    } else {
      toy::run_micro_batch(*access, specs, toy::MicroBatch(rounds, m, options.rank), skips[m], loss_scale);
    }
    if (handing) handing->end_micro_batch();
    offloader->end_micro_batch();
  }
  offloader->compare_ranks(number);
  const UpdateResult result = offloader->update(settings);
  if (handing) handing->end_step();
  return result;
}

std::vector<std::byte> ToyRig::parameters(uint32_t tensor) {
  return testing::parameter_of(*offloader, space, TensorId{tensor});
}
std::vector<std::byte> ToyRig::records() {
  return testing::records_of(*offloader);
}
std::vector<std::byte> ToyRig::state() {
  return testing::state_of(*offloader, space);
}

#define TERRACE_MAKE_RIGS(kind)                                                                              \
  template std::vector<TensorSpec> toy_tensors(const ToyCase<kind>&);                                        \
  template OffloadOptions toy_options(const ToyCase<kind>&, const FlatSpace&, const std::vector<TensorUse>&, \
                                      const std::vector<std::filesystem::path>&);                            \
  template ToyRig::ToyRig(const ToyCase<kind>&, const std::vector<std::filesystem::path>&)
TERRACE_MAKE_RIGS(RigKind::placement);
TERRACE_MAKE_RIGS(RigKind::commits);
TERRACE_MAKE_RIGS(RigKind::checkpoints);

}  // namespace terrace
