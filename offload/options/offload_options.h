// OffloadOptions: the decisions of an embedding program about a run. Everything else follows from the plan.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/memory/tier/tier_start.h>
#include <terrace/offload/options/offload_hooks.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/options/step_rounds.h>
#include <terrace/offload/options/update_rates.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// Where the gradients of a run come from.
enum class GradientOrigin : uint8_t {
  leases,       // operations write them on the device, in leases that go backward
  handed_over,  // the program makes them in memory of its own (Offloader::hand_over_gradient)
  // As handed_over, and that memory stays as it is until the step's update is over, which reads it there.
  // Everything that is trained lies in the program (TensorHome::caller), a step has one micro-batch, and
  // updates do not run in the next forward pass.
  borrowed,
  // As handed_over, and that memory is the device's. Ranks exchange on devices (exchange_on_devices()).
  handed_over_on_device,
};

// What an update does with tensors that had no gradient in the step.
enum class UnusedGradients : uint8_t {
  zero,  // their gradient is zero: weight decay and moments move on
  skip,  // it leaves them out, and every tensor counts its own steps, as torch.optim does
};

// How several ranks exchange parameters and gradients.
enum class RankExchange : uint8_t {
  symmetric,  // together: all make the same calls in the same order
  // Each gets what it needs when it needs it. Ranks may use other tensors in other orders, hand other
  // gradients over and evaluate for other times: only steps, loads, commits and reads of the state are the
  // same on all of them. Which options it leaves possible: possible_options.cpp.
  pulled,
};

struct OffloadOptions {
  Placement parameters = Placement::none;
  Placement states = Placement::none;
  std::vector<TierPath> parameter_paths;  // existing folders; used when parameters are on nvme
  std::vector<TierPath> state_paths;      // existing folders; used when states are on nvme
  // Not empty: the run uses the sub-folder of this name in each of its paths (tier_name.h), so that several
  // offloaders share paths. A sub-folder that is missing is made, and removed at the end if nothing is in it.
  std::string tier_name;

  // Keeps commits (Commits::begin): every write of a record goes to a free slot, and the last commit stays
  // whole whatever happens. Records then take twice the room on the drives. The option has no effect where no
  // commit is possible (Commits::why_not_kept).
  bool durable = false;
  uint32_t retained_commits = 0;  // commits that stay beside the last one; each takes room for all records
  // resume: the run goes on from the last commit in the tier folders; the chunk_elements of the space must be
  // that of the commit. fresh: files that no commit needs are removed, and a commit in the folders is an
  // error unless `discard_commits` is set. A discarded commit goes with the first commit of this run where
  // the new state has room beside it (Commits::earlier_stays), else at once.
  TierStart tier_start = TierStart::fresh;
  bool discard_commits = false;

  RecordLayout record_layout;  // of the optimizer states
  // The processor's share, 0 to 1, of the trained elements whose states live below the device. The device
  // updates the rest; records and gradients pass through it meanwhile (update_side.h).
  double processor_share = 1;
  // If given, these rates replace processor_share: each chunk goes to the side that finishes it first.
  std::optional<UpdateRates> update_rates;

  uint64_t device_budget_bytes = 0;  // parameters, gradients, states placed there, and work memory
  // The granularity of device memory, a power of two: chunks of parameters must be multiples of it, and all
  // other device memory is rounded up to it. 1: only whole pages are required, which every plan has.
  uint64_t device_granularity_bytes = 1;
  uint64_t host_budget_bytes = 0;  // everything in the host arena, I/O buffers included
  uint64_t work_bytes = 0;         // device memory for activations and workspaces
  // The number of checkpointed activations of a micro-batch that leave the work memory; 0: all stay in it.
  uint32_t activation_entries = 0;
  uint64_t activation_entry_bytes = 0;  // of the largest entry
  // The lowest tier that activations go to. With nvme the host keeps as many as it has room for; parameters
  // or states must be on nvme too.
  Placement activations = Placement::cpu;
  bool activations_fill_device = false;        // the device keeps as many as it has room for
  std::vector<uint32_t> activation_get_order;  // every entry once, in the order of its return; nvme only
  // Where activations of a program that makes them itself are saved between forward and backward
  // (Offloader::saved_activations): nowhere (none), in what the host budget leaves (cpu), or where that is
  // full on nvme, in the folders of passing_paths() (nvme). No number depends on this.
  Placement saved_activations = Placement::none;
  // The host memory that is kept for them in any case, for a program that knows what it saves. Without
  // saved_activations the option has no effect.
  uint64_t saved_least_bytes = 0;
  bool lock_host_memory = true;  // page-lock the host arena where the system allows it

  // The ranks of the run, and which of them this offloader is. Every rank makes an offloader with the same
  // space and options, and, where they exchange symmetrically, the same calls in the same order. Everything
  // is divided, each chunk into a share for every rank, but parameters that live on the device: these are
  // there whole on every rank.
  uint32_t ranks = 1;
  uint32_t rank = 0;
  RankExchange rank_exchange = RankExchange::symmetric;  // no number depends on this
  // The hosts of the ranks, where these are numbered host by host, as many on each; else 1. Above 1 the
  // parameters of a chunk cross to a host once, and so do gradients that are summed there (StepRounds). No
  // number depends on this.
  uint32_t hosts = 1;
  // On several hosts, what has come from other hosts is kept in host memory that the budget has room for, so
  // that it crosses once for an update and not with every fetch. true: before optimizer states are kept
  // there. No number depends on this.
  bool keeps_gathers_first = false;
  // The hosts of a sub-group, which divide the hosts: a sub-group keeps what comes from the hosts of others,
  // and holds the parameters once, so that with every fetch they cross within it alone. No number depends on
  // this.
  uint32_t sub_group_hosts = 1;
  // Parameters that live on the device are divided too. Each rank has its shares there, and a chunk comes
  // together in a device slot when an operation needs it. With one rank the option has no effect.
  bool divides_parameters = false;
  // Gradients that ranks exchange leave and enter the device by copies, through host memory. It has to be so
  // where the host cannot reach device memory; else ranks read and write the memory of the device themselves.
  bool exchanges_by_copies = false;
  // So do parameters that ranks gather, through slots in host memory. Without it these come together in slots
  // of the device, and where the host cannot reach them, the communicator moves them from device to device
  // (gather_on_devices()), and so it does with gradients that are made there (exchange_on_devices()).
  bool gathers_by_copies = false;
  // Gathers and exchanges are on their way while the step goes on. false: the step waits for each of them
  // where it asks for it. No number depends on this.
  bool ranks_overlap = true;
  // In every so many steps, Offloader::compare_ranks() compares the parameters that ranks have gathered; 0:
  // in none. The option has no effect where the host cannot reach device memory.
  uint64_t compare_ranks_every_steps = 0;

  uint32_t micro_batches = 1;  // per update, over all ranks; above 1 gradients accumulate
  // The micro-batches of a gradient group (StepRounds). Above 1 an accumulator has two sums: that of the
  // groups before, and that of the open group.
  uint32_t gradient_group = 1;
  // Opens all micro-batches of a step together, so that each operation can run for all of them before the
  // next operation, and its parameters come once. Gradients are added in the same order either way: no bit
  // depends on this option.
  bool layer_major = false;
  // No gradient is spilled to nvme: a host budget without room for all gradients is too small
  // (mode_holds_gradients).
  bool holds_gradients = false;
  GradientOrigin gradients = GradientOrigin::leases;
  UnusedGradients unused_gradients = UnusedGradients::zero;
  // Above 0, what joins the sum of a step is rounded to so many bits, 8 or 4: the sum of each gradient group,
  // or each micro-batch's gradient where there are no groups (optimizer_cpu/quantization.h). So many bits of
  // it cross between hosts. The numbers depend on this, and on no placement and no number of ranks.
  uint32_t gradient_bits = 0;
  // Above 0, trained parameters of 16 bits are rounded to so many bits, 8, wherever they are made of their
  // masters, which stay exact. So many bits of them cross between hosts. The numbers depend on this, and on
  // no placement and no number of ranks. It needs whole masters.
  uint32_t parameter_bits = 0;
  // The arithmetic of the products that make the steps of whole matrices (TensorSpec::by_matrix). The numbers
  // depend on it, and on no processor: one without the instruction takes longer.
  ProductType matrix_products = ProductType::fp32;
  // The type of gradient accumulators: fp32, or the parameters' own type, which takes less memory and rounds
  // every sum.
  DataType accumulation_type = DataType::fp32;
  PolicyKind policy = PolicyKind::opt;
  uint32_t prefetch_uses = 16;  // how many uses ahead to fetch at most; 0 fetches on demand only
  uint64_t prefetch_elements = std::numeric_limits<uint64_t>::max();  // elements ahead to fetch at most

  // The device itself reads parameters on nvme that are not resident in host memory
  // (Device::make_file_reader), without a host slot. Their checksums are not verified, so this requires
  // verify_checksums = false.
  bool reads_past_host = false;

  io::EngineOptions io;
  bool verify_checksums = true;
  // Plans only: every decision is made and every byte counted as in a run, with a DryDevice, with addresses
  // that have no memory, and without files and arithmetic. Its weights and norms are meaningless. A dry run
  // starts fresh.
  bool dry = false;
  OffloadHooks hooks;
};

// The paths of data that only passes through nvme and is never part of a commit: those of the states, or
// those of the parameters where the states are not on nvme.
inline const std::vector<TierPath>& passing_paths(const OffloadOptions& options) {
  return options.states == Placement::nvme ? options.state_paths : options.parameter_paths;
}

// The rounds in which this rank takes part in the micro-batches of a step.
inline StepRounds rounds_of(const OffloadOptions& options) {
  return {options.micro_batches, options.ranks, options.gradient_group, options.hosts, options.gradient_bits};
}

// True if there are several ranks, and they pull.
inline bool pulls(const OffloadOptions& options) {
  return options.ranks > 1 && options.rank_exchange == RankExchange::pulled;
}

// True if parameters that ranks gather go from device to device past the host, whose communicator has a lane
// for that (comm/nccl): all ranks ask for them in one order, and are on one host.
inline bool gather_on_devices(const OffloadOptions& options) {
  return options.ranks > 1 && options.exchanges_by_copies && !options.gathers_by_copies;
}

// True if the gradients that ranks exchange do so, too: from the slots in which leases have written them, or
// to which they are copied within the device when they are handed over.
inline bool exchange_on_devices(const OffloadOptions& options) {
  return gather_on_devices(options) && (options.gradients == GradientOrigin::leases ||
                                        options.gradients == GradientOrigin::handed_over_on_device);
}

// True if the shares of ranks are the parameters' home on the device.
inline bool has_shares_on_device(const OffloadOptions& options) {
  return options.parameters == Placement::none && options.divides_parameters && options.ranks > 1;
}

// True if the device has all parameters at all times.
inline bool has_all_on_device(const OffloadOptions& options) {
  return options.parameters == Placement::none && !has_shares_on_device(options);
}

// True if a gradient is the sum of several, comes in parts of several ranks, or is rounded on its way, and so
// has an accumulator.
inline bool accumulates(const OffloadOptions& options) {
  return options.micro_batches > 1 || options.ranks > 1 || options.gradient_bits > 0;
}

// The sums that an accumulator has, one behind the other; the first becomes the gradient of the step.
inline uint32_t sums_of_accumulator(const OffloadOptions& options) {
  return rounds_of(options).has_groups() ? 2 : 1;
}

// True if a complete gradient stays in its device slot until the update.
inline bool gradients_stay(const OffloadOptions& options) {
  return options.states == Placement::none && !accumulates(options);
}

}  // namespace terrace
