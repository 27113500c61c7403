#include <terrace/offload/plan/memory_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/host_slots.h>
#include <terrace/offload/plan/incoming_places.h>
#include <terrace/offload/plan/matrix_groups.h>
#include <terrace/offload/plan/possible_options.h>
#include <terrace/offload/plan/saved_room.h>
#include <terrace/offload/plan/update_side.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {
namespace {

constexpr uint32_t kStagingMinimum = 2;  // one chunk moves while the next one is read
constexpr uint32_t kStagingWanted = 8;
constexpr uint32_t kLandingSlots = 2;  // one is copied while the other is added
constexpr uint32_t kGatherSlots = 4;   // two are exchanged, one is copied and one is asked for
constexpr uint32_t kAnswerSlots = 4;   // as many shares on nvme are read for other ranks at once
constexpr uint32_t kCodeSlots = 8;     // as many shares cross between hosts at once
constexpr uint32_t kSpillSlots = 2;    // one fills while the other one empties
constexpr uint32_t kSpillSlotsWanted = 8;
constexpr uint64_t kSpillShareOfHost = 16;
constexpr uint32_t kActivationSlots = 4;  // one is copied, one is written or read, and two are read ahead
constexpr uint32_t kDeviceLanes = 4;      // two come, one is computed with and one goes
constexpr uint32_t kRingSlotsMinimum = 4;
constexpr uint64_t kRingBytesWanted =
    16 * kMiB;  // this size stays in a last-level cache and is the fastest one measured
constexpr uint64_t kRingShareOfHost = 8;  // a small budget gives the ring at most this fraction
constexpr uint32_t kCommitSlots = 4;      // blocks of a commit that are read while it is copied
constexpr uint32_t kJoinSlots = 2;        // a block of records and one of parameters, before they are joined
constexpr uint32_t kOldParameterSlotsMinimum = 2;  // one chunk is updated while the next one is read
constexpr uint32_t kOldParameterSlotsWanted = 4;
constexpr uint32_t kChunksBeingWritten = 4;  // chunks of parameters under way, beyond those that commits hold

struct Counts {
  uint32_t chunks = 0;            // with parameters to place: all but the caller's
  uint32_t trainable_chunks = 0;  // the caller's too
  uint32_t caller_chunks = 0;
  // Trainable chunks with parameters to place.
  uint32_t placed_trainable_chunks() const { return trainable_chunks - caller_chunks; }
  uint32_t frozen_chunks() const { return chunks - placed_trainable_chunks(); }
  uint64_t trainable_elements = 0;
  uint64_t record_bytes = 0;  // records of all trainable chunks
  uint64_t record_blocks = 0;
  uint64_t param_blocks = 0;            // blocks of all chunks
  uint64_t trainable_param_blocks = 0;  // blocks of the trainable chunks
  uint64_t param_bytes = 0;             // payload of all chunks
  uint64_t matrix_bytes = 0;
};

// The elements of a rank's share, as of the first rank, which has the most.
uint64_t share_of(uint64_t elements, const OffloadOptions& options) {
  return divide_up(elements / kTileElements, options.ranks) * kTileElements;
}

Counts count(const SpaceLayout& space, const OffloadOptions& options) {
  const RecordLayout& layout = options.record_layout;
  Counts counts;
  const uint64_t block_bytes = std::min(kParamBlockBytes, space.param_slot_bytes() / space.chunk_elements() *
                                                              share_of(space.chunk_elements(), options));
  const auto add = [&](const Section& section, uint64_t chunk_elements, uint64_t chunks) {
    const uint64_t elements = share_of(chunk_elements, options);
    const uint64_t param_bytes = elements * bytes_of(section.type);
    const bool is_placed = section.home == TensorHome::managed;
    const uint64_t param_blocks = is_placed ? chunks * divide_up(param_bytes, block_bytes) : 0;
    counts.chunks += is_placed ? static_cast<uint32_t>(chunks) : 0;
    counts.caller_chunks += is_placed ? 0 : static_cast<uint32_t>(chunks);
    counts.param_bytes += is_placed ? chunks * param_bytes : 0;
    counts.param_blocks += param_blocks;
    if (!section.trainable) return;
    const uint64_t tiles = elements / kTileElements;
    counts.trainable_param_blocks += param_blocks;
    counts.trainable_chunks += static_cast<uint32_t>(chunks);
    counts.trainable_elements += chunks * elements;
    counts.record_bytes += chunks * tiles * layout.tile_bytes();
    counts.record_blocks += chunks * divide_up(tiles, layout.block_tiles());
  };
  counts.matrix_bytes = MatrixGroups(space, options.ranks).host_bytes();
  for (const Section& section : space.sections()) {
    if (section.chunk_count > 1) add(section, section.chunk_elements, section.chunk_count - 1);
    add(section, space.elements_of_chunk(section, section.chunk_count - 1), 1);
  }
  return counts;
}

// Checkpointed activations take device memory before chunks that could stay, but after chunks that are
// fetched ahead: a byte of an activation saves its way out and back in every micro-batch, a byte of a chunk
// only its way back.
uint32_t activations_on_device(uint64_t budget, const MemoryPlan& plan, uint64_t fixed_bytes) {
  const uint64_t first_bytes =
      fixed_bytes +
      std::min<uint64_t>(plan.device_slots_useful, 2 * plan.device_slots_minimum) * plan.slot_bytes;
  if (plan.device_activation_entries_useful == 0 || budget < first_bytes) return 0;
  const uint64_t granules = (budget - first_bytes) / plan.device_granularity_bytes;
  return static_cast<uint32_t>(
      std::min<uint64_t>(plan.device_activation_entries_useful,
                         granules * plan.device_granularity_bytes / plan.activation_entry_bytes));
}

// A chunk's addresses follow those of the one before, so its slot is neither longer nor shorter.
void require_whole_granules(const SpaceLayout& space, const MemoryPlan& plan) {
  if (plan.slot_bytes % plan.device_granularity_bytes == 0) return;
  const uint64_t widest_bytes = plan.slot_bytes / space.chunk_elements();
  throw Error(ErrorKind::config,
              {"cannot give the device chunks", fmt::format("of {} elements", space.chunk_elements()),
               fmt::format("its memory comes in pieces of {}", format_bytes(plan.device_granularity_bytes)),
               fmt::format("cut chunks of a multiple of {} elements (",
                           plan.device_granularity_bytes / widest_bytes) +
                   Option::chunk_elements + ")"});
}

// A run is a block of records, or a chunk if that is less. Lanes have room for elements of any section.
void plan_lanes(const SpaceLayout& space, const OffloadOptions& options, MemoryPlan& plan) {
  plan.device_side = updated_on_device(space, options);
  if (plan.device_update_chunks() == 0) return;
  uint64_t parameter_bytes = 0, gradient_bytes = 0;
  for (const Section& section : space.sections()) {
    if (!section.trainable) continue;
    parameter_bytes = std::max(parameter_bytes, bytes_of(section.type));
    gradient_bytes = std::max(gradient_bytes, bytes_of(held_gradient_type(section, options)));
  }
  plan.device_lanes = kDeviceLanes;
  plan.device_lane_tiles =
      std::min(plan.record_layout.block_tiles(), space.largest_trainable_chunk() / kTileElements);
  plan.device_lane_gradient_bytes = plan.device_lane_tiles * kTileElements * gradient_bytes;
  plan.device_lane_parameter_bytes = plan.device_lane_tiles * kTileElements * parameter_bytes;
}

void plan_device(const SpaceLayout& space, std::span<const TensorUse> trace, const OffloadOptions& options,
                 const Counts& counts, MemoryPlan& plan) {
  const bool states_there = options.states == Placement::none;
  const bool params_there = has_all_on_device(options);
  plan.device_granularity_bytes = options.device_granularity_bytes;
  const auto whole = [&](uint64_t bytes) { return round_up(bytes, plan.device_granularity_bytes); };
  plan.work_bytes = whole(options.work_bytes);
  plan.slot_bytes = space.param_slot_bytes();
  require_whole_granules(space, plan);
  plan.share_bytes = plan.slot_bytes / space.chunk_elements() * share_of(space.chunk_elements(), options);
  const uint64_t most_elements = share_of(space.largest_trainable_chunk(), options);
  plan.record_slot_bytes = most_elements / kTileElements * plan.record_layout.tile_bytes();
  const uint64_t sum_bytes = most_elements * bytes_of(options.accumulation_type);
  plan.accumulator_slot_bytes = sum_bytes * sums_of_accumulator(options);
  if (rounds_of(options).sums_on_hosts()) {
    plan.group_sum_bytes = sum_bytes;
    if (options.gradient_bits > 0)
      plan.group_code_bytes = quantized_bytes(most_elements, options.gradient_bits);
  }
  if (states_there) {
    plan.record_slot_bytes = whole(plan.record_slot_bytes);
    plan.accumulator_slot_bytes = whole(plan.accumulator_slot_bytes);
    plan.device_record_slots = counts.trainable_chunks;
    if (accumulates(options)) plan.device_accumulator_slots = counts.trainable_chunks;
  }
  plan_exchanged_gradients(options, counts.trainable_chunks, kLandingSlots, plan);
  if (has_shares_on_device(options)) plan.device_share_bytes = whole(counts.param_bytes);
  plan_lanes(space, options, plan);
  const bool stay = gradients_stay(options);
  const bool handed_over = options.gradients != GradientOrigin::leases;
  const LeasedGradients leased = leased_gradients(options);
  const SlotDemand demand = trace.empty() ? least_slots(space, params_there, stay, leased)
                                          : minimum_slots(space, trace, params_there, stay, leased);
  plan.device_peak_operation = demand.operation;
  // An update of states on the device writes the parameters of one chunk into a slot of its own before they
  // leave for their home below.
  const uint32_t output_slots = states_there && options.parameters != Placement::none ? 1 : 0;
  // A gradient that is handed over on the host passes through a slot on its way to an accumulator there.
  const bool passes = handed_over && states_there && !stay && plan.device_handed_slots == 0;
  const uint32_t handed_slots = passes ? 1 : 0;
  if (handed_over) plan.device_gradient_slots = stay ? counts.trainable_chunks : handed_slots;
  plan.device_slots_minimum =
      std::max({demand.slots, counts.chunks > 0 ? 1u : 0u,
                (params_there ? counts.chunks : 0) + (stay ? counts.trainable_chunks : 0)}) +
      std::max(output_slots, handed_slots);
  const uint32_t gradient_slots = handed_over && !stay ? handed_slots : counts.trainable_chunks;
  plan.device_slots_useful =
      std::max(plan.device_slots_minimum, counts.chunks + gradient_slots + output_slots);
  uint64_t fixed_bytes = plan.work_bytes + plan.device_record_slots * plan.record_slot_bytes +
                         plan.device_accumulator_slots * plan.accumulator_slot_bytes +
                         plan.device_share_bytes + plan.device_exchange_bytes() + plan.device_lanes_bytes();
  plan.device_minimum_bytes = fixed_bytes + plan.device_slots_minimum * plan.slot_bytes;
  // If the device budget is below the device's minimum, the host's need is computed beside that minimum.
  const uint64_t budget = std::max(options.device_budget_bytes, plan.device_minimum_bytes);
  plan.activation_entry_bytes = HostArena::cost_bytes(options.activation_entry_bytes);
  if (options.activations_fill_device) plan.device_activation_entries_useful = options.activation_entries;
  plan.device_activation_entries = activations_on_device(budget, plan, fixed_bytes);
  fixed_bytes += plan.device_activation_bytes();
  const uint64_t fitting = (budget - fixed_bytes) / plan.slot_bytes;
  plan.device_slots = static_cast<uint32_t>(std::min<uint64_t>(fitting, plan.device_slots_useful));
  plan.device_bytes = fixed_bytes + plan.device_slots * plan.slot_bytes;
}

uint64_t host_total(const MemoryPlan& plan) {
  return (plan.host_param_slots + plan.staging_slots + plan.answer_slots + plan.old_parameter_slots) *
             plan.share_bytes +
         (plan.host_gradient_slots + plan.gather_slots) * plan.slot_bytes +
         plan.landing_slots * plan.landing_slot_bytes + plan.incoming_slots * plan.incoming_slot_bytes +
         plan.code_slots * plan.code_slot_bytes + plan.kept_gathers * plan.kept_gather_bytes +
         plan.host_accumulator_slots * plan.accumulator_slot_bytes + plan.gradient_sum_bytes +
         2 * plan.spill_slots * plan.spill_slot_bytes + plan.host_record_slots * plan.record_slot_bytes +
         plan.ring_slots * plan.ring_slot_bytes + plan.commit_slots * plan.commit_slot_bytes +
         plan.host_activation_bytes() + plan.matrix_bytes + plan.bookkeeping_bytes;
}

// Places `entries` activation checkpoints below the device. If they are no more than the slots they would
// pass through, they stay in host memory, which takes no more room.
void place_activations(bool on_nvme, uint32_t entries, MemoryPlan& plan) {
  const bool passes = on_nvme && entries > kActivationSlots;
  plan.nvme_activation_entries = passes ? entries : 0;
  plan.activation_slots = passes ? kActivationSlots : 0;
  plan.host_activation_entries = passes ? 0 : entries;
}

bool stages_parameters(const OffloadOptions& options) {
  return options.parameters == Placement::nvme && !options.reads_past_host;
}

// Plans what the host needs in any case, except for gradients.
void plan_host_fixed(const OffloadOptions& options, const Counts& counts, MemoryPlan& plan) {
  const bool states_on_device = options.states == Placement::none;
  const bool has_sums = accumulates(options);
  plan.bookkeeping_bytes = counts.chunks * kBookkeepingBytesPerChunk;
  plan.matrix_bytes = counts.matrix_bytes;
  if (options.states == Placement::cpu) plan.host_record_slots = counts.trainable_chunks;
  if (options.parameters == Placement::cpu) {
    plan.host_param_slots = counts.chunks;
    plan.host_frozen_param_slots = counts.frozen_chunks();
  }
  if (stages_parameters(options)) plan.staging_slots = kStagingMinimum;
  if (pulls(options) && options.parameters == Placement::nvme)
    plan.answer_slots = std::min(kAnswerSlots, counts.chunks);
  const bool reads_old_parameters = plan.record_layout.master == MasterForm::remainder && !states_on_device &&
                                    options.parameters != Placement::cpu;
  if (reads_old_parameters) plan.old_parameter_slots = kOldParameterSlotsMinimum;
  // Landing slots also hold new parameters that wait to be copied or written, if these cannot take the place
  // of their gradients.
  const bool over_gradients = !states_on_device && !has_sums && counts.frozen_chunks() == 0;
  if (!over_gradients) plan.landing_slots = kLandingSlots;
  plan.landing_slot_bytes = exchange_on_devices(options) ? plan.share_bytes : plan.slot_bytes;
  // The only memory in which parameters can be loaded and read, between steps.
  if (options.gradients == GradientOrigin::borrowed) plan.landing_slots = 1;
  if (options.ranks > 1) {
    plan.incoming_slots = exchange_on_devices(options) && states_on_device ? 0 : plan.landing_slots;
    const uint64_t groups = plan.group_sum_bytes > 0 ? rounds_of(options).groups_per_host() : 0;
    // Sums leave and arrive as they are, or as codes beside one of both.
    const uint64_t of_group =
        plan.group_sum_bytes + (plan.group_code_bytes > 0 ? 2 * plan.group_code_bytes : plan.group_sum_bytes);
    const uint32_t parts = options.ranks - (exchange_on_devices(options) ? 1 : 0);  // the own one lands
    plan.incoming_slot_bytes =
        HostArena::cost_bytes(parts * plan.share_bytes + (options.hosts - 1) * groups * of_group);
    if (options.gathers_by_copies) plan.gather_slots = std::min(kGatherSlots, counts.chunks);
    if (options.hosts > 1 && options.parameter_bits > 0) {
      plan.code_slots = std::min(kCodeSlots, counts.chunks);
      plan.code_slot_bytes = HostArena::cost_bytes(
          options.hosts * quantized_bytes(plan.share_bytes / sizeof(Bf16), options.parameter_bits));
    }
  }
  // If masters are whole, nothing needs the parameters between the landing of a gradient and the update. A
  // gradient that is handed over may come before those of other tensors in its chunk, which are still used.
  plan.gradients_take_over = !states_on_device && !has_sums && options.parameters != Placement::none &&
                             plan.record_layout.master == MasterForm::whole &&
                             options.gradients == GradientOrigin::leases;
  plan.gradient_sum_bytes =
      HostArena::cost_bytes(counts.trainable_elements / kSumBlockElements * sizeof(double));
  place_activations(options.activations == Placement::nvme,
                    options.activation_entries - plan.device_activation_entries, plan);
  plan.ring_slot_bytes =
      std::min(plan.record_layout.block_tiles() * plan.record_layout.tile_bytes(), plan.record_slot_bytes);
  // Without states on nvme one block serves initialisation and checkpoints.
  plan.ring_slots = options.states == Placement::nvme ? kRingSlotsMinimum : 1;
  if (plan.keeps_commits) {
    plan.commit_slots = kCommitSlots + (has_parameters_in_commits(plan) ? kJoinSlots : 0);
    plan.commit_slot_bytes = std::max(plan.ring_slot_bytes, plan.param_block_bytes());
  }
}

// What the plan leaves to saved activations whatever else it has room for.
uint64_t saved_least(const OffloadOptions& options) {
  return options.saved_activations != Placement::none ? options.saved_least_bytes : 0;
}

// Gives the gradients of `count` chunks room on the host, wherever they are held, and spills the others.
void hold_gradients(const OffloadOptions& options, const Counts& counts, uint32_t count, MemoryPlan& plan) {
  plan.spilled_chunks = counts.trainable_chunks - count;
  if (accumulates(options)) {
    plan.host_accumulator_slots = count;
  } else if (!plan.gradients_take_over) {
    plan.host_gradient_slots = count;
  } else if (options.parameters == Placement::nvme) {
    plan.host_param_slots = count;
  }
}

// Holds all gradients on the host if the budget allows, and spills them otherwise. If the budget is too small
// for either, the plan is the one that needs less.
void plan_host_gradients(const OffloadOptions& options, const Counts& counts, MemoryPlan& plan) {
  const bool has_slots = options.states != Placement::none && options.gradients != GradientOrigin::borrowed;
  if (has_slots) hold_gradients(options, counts, counts.trainable_chunks, plan);
  plan.host_minimum_bytes = plan.host_holding_bytes = host_total(plan) + saved_least(options);
  const bool all_in_home = plan.gradients_take_over && options.parameters == Placement::cpu;
  const bool has_nvme = options.states == Placement::nvme || options.parameters == Placement::nvme;
  if (!has_slots || !has_nvme || all_in_home || options.holds_gradients) return;
  MemoryPlan spilling = plan;
  hold_gradients(options, counts, 0, spilling);
  spilling.spill_slots = kSpillSlots;
  spilling.spill_slot_bytes = accumulates(options) ? plan.accumulator_slot_bytes : plan.slot_bytes;
  spilling.host_minimum_bytes = host_total(spilling) + saved_least(options);
  if (spilling.host_minimum_bytes >= plan.host_minimum_bytes) return;
  plan.host_minimum_bytes = spilling.host_minimum_bytes;
  if (options.host_budget_bytes < plan.host_holding_bytes) plan = spilling;
}

// `room_for(bytes, wanted)` returns how many more of something fit.
void keep_activations(FunctionRef<uint32_t(uint64_t bytes, uint64_t wanted)> room_for, MemoryPlan& plan) {
  const uint32_t below = plan.nvme_activation_entries;
  const uint32_t kept = room_for(plan.activation_entry_bytes, below);
  place_activations(true, below - kept, plan);
  plan.host_activation_entries += kept;
}

// Whether chunks leave the device before they are needed again.
bool fetches_again(const OffloadOptions& options, const MemoryPlan& plan) {
  return !has_all_on_device(options) && plan.device_slots < plan.device_slots_useful;
}

// Spends the rest of the host's budget where a byte saves most traffic in a step. Parameters are read twice
// and written once, and their slots take their gradients too, which are written once and read once.
// Accumulators and activations are written and read in every micro-batch, frozen parameters are read twice,
// records are read and written once.
void plan_host(const OffloadOptions& options, const Counts& counts, MemoryPlan& plan) {
  plan_host_fixed(options, counts, plan);
  plan_host_gradients(options, counts, plan);
  if (options.host_budget_bytes < plan.host_minimum_bytes) return;
  uint64_t budget = options.host_budget_bytes - saved_least(options);
  // Returns how many more of something fit.
  auto room_for = [&](uint64_t bytes, uint64_t wanted) {
    return static_cast<uint32_t>(std::min<uint64_t>((budget - host_total(plan)) / bytes, wanted));
  };
  const bool params_on_nvme = options.parameters == Placement::nvme;
  if (options.states == Placement::nvme) {
    const uint64_t wanted = std::min(kRingBytesWanted, budget / kRingShareOfHost) / plan.ring_slot_bytes;
    const uint64_t blocks = divide_up(counts.record_bytes, plan.ring_slot_bytes);
    plan.ring_slots +=
        room_for(plan.ring_slot_bytes,
                 std::max<uint64_t>(std::min(wanted, blocks), plan.ring_slots) - plan.ring_slots);
  }
  if (plan.old_parameter_slots > 0) {
    const uint32_t wanted = std::min(kOldParameterSlotsWanted, counts.trainable_chunks);
    plan.old_parameter_slots +=
        room_for(plan.share_bytes, std::max(wanted, plan.old_parameter_slots) - plan.old_parameter_slots);
  }
  if (stages_parameters(options)) {
    plan.staging_slots += room_for(
        plan.share_bytes, std::min(kStagingWanted, counts.chunks) - std::min(kStagingMinimum, counts.chunks));
  }
  // With compact state the parameters are read once more, and gradients do not take over their slots.
  const bool parameters_first = !plan.gradients_take_over && !accumulates(options);
  const auto keep_parameters = [&] {
    plan.host_param_slots +=
        room_for(plan.share_bytes, counts.placed_trainable_chunks() - plan.host_param_slots);
  };
  if (params_on_nvme && parameters_first) keep_parameters();
  if (plan.spilled_chunks > 0) {
    const uint64_t share = budget / kSpillShareOfHost / (2 * plan.spill_slot_bytes);
    const uint64_t wanted = std::clamp<uint64_t>(share, kSpillSlots, kSpillSlotsWanted) - kSpillSlots;
    plan.spill_slots += room_for(2 * plan.spill_slot_bytes, wanted);
    hold_gradients(options, counts, room_for(plan.spill_slot_bytes, counts.trainable_chunks), plan);
  }
  if (params_on_nvme && !parameters_first) keep_parameters();
  if (plan.nvme_activation_entries > 0) keep_activations(room_for, plan);
  const SavedRoom saved = room_for_saved(budget - host_total(plan), options);
  budget -= saved.before_frozen;
  if (params_on_nvme) {
    plan.host_frozen_param_slots = room_for(plan.share_bytes, counts.frozen_chunks());
    plan.host_param_slots += plan.host_frozen_param_slots;
  }
  budget = std::max(budget + saved.before_frozen - saved.before_records, host_total(plan));
  // A byte of either saves two of a drive, or one of the network, in a step.
  const auto keep_gathers = [&] {
    if (options.hosts == options.sub_group_hosts || !fetches_again(options, plan)) return;
    plan.kept_gather_bytes = (options.hosts - options.sub_group_hosts) * plan.share_bytes;
    plan.kept_gathers = room_for(plan.kept_gather_bytes, counts.chunks);
  };
  if (options.keeps_gathers_first) keep_gathers();
  if (options.states == Placement::nvme)
    plan.host_record_slots = room_for(plan.record_slot_bytes, counts.trainable_chunks);
  if (!options.keeps_gathers_first) keep_gathers();
  plan.host_bytes = host_total(plan);
}

void plan_disk(const SpaceLayout& space, const OffloadOptions& options, const Counts& counts,
               MemoryPlan& plan) {
  const uint64_t block_bytes = plan.param_block_bytes();
  if (options.parameters == Placement::nvme) {
    // Loading a frozen chunk again before the first commit needs a second place, because the earlier copy is
    // still there.
    if (plan.keeps_commits && counts.frozen_chunks() > 0)
      plan.frozen_spare_slots = divide_up(plan.share_bytes, block_bytes);
    plan.parameter_file_bytes = (counts.param_blocks + plan.frozen_spare_slots) * block_bytes;
    if (plan.frozen_spare_slots > 0)
      plan.frozen_file_bytes = plan.parameter_file_bytes - counts.trainable_param_blocks * block_bytes;
  }
  if (has_parameters_in_commits(plan)) {
    plan.parameter_spare_slots = (1 + options.retained_commits) * counts.trainable_param_blocks +
                                 kChunksBeingWritten * divide_up(plan.share_bytes, block_bytes);
    if (options.parameters != Placement::nvme)
      plan.parameter_file_bytes = counts.trainable_param_blocks * block_bytes;
    plan.parameter_file_bytes += plan.parameter_spare_slots * block_bytes;
  }
  if (options.states == Placement::nvme) {
    if (plan.keeps_commits)
      plan.record_spare_slots = (1 + options.retained_commits) * counts.record_blocks + plan.ring_slots;
    plan.record_file_bytes = (counts.record_blocks + plan.record_spare_slots) * plan.ring_slot_bytes;
  }
  const std::vector<bool> spilled = spilled_gradients(space, plan);
  for (const Section& section : space.sections()) {
    const uint64_t element_bytes =
        bytes_of(held_gradient_type(section, options)) * sums_of_accumulator(options);
    for (uint32_t i = 0; i < section.chunk_count; ++i) {
      const uint64_t bytes = share_of(space.elements_of_chunk(section, i), options) * element_bytes;
      if (spilled[section.first_chunk + i])
        plan.gradient_file_bytes += round_up(bytes, plan.spill_block_bytes());
    }
  }
  if (plan.nvme_activation_entries > 0) {
    plan.activation_file_bytes =
        plan.nvme_activation_entries * round_up(plan.activation_entry_bytes, plan.activation_block_bytes());
  }
}

}  // namespace

MemoryPlan plan_needs(const SpaceLayout& space, std::span<const TensorUse> trace,
                      const OffloadOptions& options) {
  TERRACE_ASSERT(options.micro_batches > 0, "an update needs at least one micro-batch");
  require_possible(space, options);
  const Counts counts = count(space, options);
  MemoryPlan plan;
  plan.record_layout = options.record_layout;
  plan.why_no_commits = reason_without_commits(space, options);
  plan.keeps_commits = plan.why_no_commits.empty();
  plan.parameter_chunks = counts.chunks;
  plan.record_chunks = counts.trainable_chunks;
  plan.caller_chunks = counts.caller_chunks;
  plan_device(space, trace, options, counts, plan);
  plan_host(options, counts, plan);
  if (!fits(plan, options)) return plan;
  if (options.saved_activations != Placement::none)
    plan.saved_activation_bytes = options.host_budget_bytes - plan.host_bytes;
  plan_disk(space, options, counts, plan);
  return plan;
}

MemoryPlan plan_memory(const SpaceLayout& space, std::span<const TensorUse> trace,
                       const OffloadOptions& options) {
  require_bookkeeping(space, options);
  MemoryPlan plan = plan_needs(space, trace, options);
  if (fits(plan, options)) return plan;
  OffloadOptions other = options;
  const auto needs_of = [&](uint64_t, uint64_t device_budget_bytes) {
    other.device_budget_bytes = device_budget_bytes;
    return plan_needs(space, trace, other);
  };
  const ChunkCut cut{space.chunk_elements(), std::move(plan)};
  refuse_budgets(needs_of, {&cut, 1}, options);
}

std::vector<bool> spilled_gradients(const SpaceLayout& space, const MemoryPlan& plan) {
  std::vector<bool> spilled(space.chunk_count(), false);
  if (plan.spilled_chunks == 0) return spilled;
  const uint32_t held = plan.record_chunks - plan.spilled_chunks;
  uint32_t trainable = 0;
  for (const Section& section : space.sections()) {
    if (!section.trainable) continue;
    for (uint32_t i = 0; i < section.chunk_count; ++i)
      spilled[section.first_chunk + i] = !is_kept(trainable++, held, plan.record_chunks);
  }
  return spilled;
}

}  // namespace terrace
