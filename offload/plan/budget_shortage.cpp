#include <terrace/offload/plan/budget_shortage.h>

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

// Need: how much of a budget is needed, and for what.
struct Need {
  TierShortage shortage;
  std::string uses;
  Wording advice;
};

struct Use {
  const char* purpose;
  uint64_t bytes;
};

std::string list_of(std::initializer_list<Use> uses) {
  std::string list;
  for (const Use& use : uses) {
    if (use.bytes > 0)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", use.purpose, format_bytes(use.bytes));
  }
  return list;
}

// `needed_bytes` exceeds the plan's minimum if the device must keep activations for which the host has no
// room.
Need device_need(const MemoryPlan& plan, uint64_t needed_bytes, const OffloadOptions& options) {
  Wording advice = "raise " + Option::device_budget;
  if (options.work_bytes > 0) advice += ", or lower the micro-batch or its length";
  if (options.parameters == Placement::none || options.states == Placement::none)
    advice += ", or place parameters and states on cpu or nvme";
  if (!plan.device_peak_operation.empty())
    advice += fmt::format("; most slots at once are needed by {}", plan.device_peak_operation);
  return {{"device", options.device_budget_bytes, needed_bytes},
          list_of({{"activations and workspaces", plan.work_bytes},
                   {"parameters and gradients", plan.device_slots_minimum * plan.slot_bytes},
                   {"this rank's share of the parameters", plan.device_share_bytes},
                   {"optimizer states", plan.device_record_slots * plan.record_slot_bytes},
                   {"gradient accumulators", plan.device_accumulator_slots * plan.accumulator_slot_bytes},
                   {"gradients of other ranks", plan.device_incoming_bytes},
                   {"gradients that leave for other ranks", plan.device_handed_bytes()},
                   {"buffers of updates on the device", plan.device_lanes_bytes()},
                   {"activation checkpoints that the host has no room for, and the slots before them",
                    needed_bytes - plan.device_minimum_bytes}}),
          std::move(advice)};
}

Need host_need(const MemoryPlan& plan, const OffloadOptions& options) {
  const bool on_cpu = options.states == Placement::cpu || options.parameters == Placement::cpu;
  Wording advice = on_cpu ? "raise " + Option::host_budget + ", or move what is on cpu to nvme"
                          : "raise " + Option::host_budget;
  if (options.holds_gradients && options.states == Placement::nvme)
    advice += ", or let updates run after_backward (" + Option::update_when +
              "), with which gradients may wait on "
              "nvme";
  return {
      {"host", options.host_budget_bytes, plan.host_minimum_bytes},
      list_of({{"gradients",
                plan.host_gradient_slots * plan.slot_bytes + 2 * plan.spill_slots * plan.spill_slot_bytes +
                    plan.host_accumulator_slots * plan.accumulator_slot_bytes + plan.gradient_sum_bytes},
               {"parameters", plan.host_param_slots * plan.share_bytes},
               {"optimizer states", plan.host_record_slots * plan.record_slot_bytes},
               {"activation checkpoints", plan.host_activation_bytes()},
               {"saved activations",
                options.saved_activations != Placement::none ? options.saved_least_bytes : 0},
               {"staging and I/O",
                (plan.staging_slots + plan.old_parameter_slots) * plan.share_bytes +
                    plan.landing_slots * plan.landing_slot_bytes + plan.gather_slots * plan.slot_bytes +
                    plan.incoming_slots * plan.incoming_slot_bytes + plan.code_slots * plan.code_slot_bytes +
                    plan.ring_slots * plan.ring_slot_bytes + plan.commit_slots * plan.commit_slot_bytes},
               {"steps of matrices", plan.matrix_bytes},
               {"bookkeeping of chunks", plan.bookkeeping_bytes}}),
      std::move(advice)};
}

std::string amounts(const Need& need) {
  const TierShortage& shortage = need.shortage;
  return fmt::format("at least {} ({} bytes), so that {}: {}", format_bytes(shortage.needed_bytes),
                     shortage.needed_bytes, missing_text(shortage), need.uses);
}

[[noreturn]] void refuse(const Need& need) {
  const TierShortage& shortage = need.shortage;
  throw ShortageError({fmt::format("this run does not fit a {} budget of {}", shortage.tier,
                                   format_bytes(shortage.budget_bytes)),
                       "", "it needs " + amounts(need), need.advice},
                      {shortage});
}

[[noreturn]] void refuse(const Need& device, const Need& host) {
  throw ShortageError(
      {fmt::format("this run does not fit a device budget of {} and a host budget of {}",
                   format_bytes(device.shortage.budget_bytes), format_bytes(host.shortage.budget_bytes)),
       "",
       fmt::format("of the device it needs {}; of the host beside that it needs {}", amounts(device),
                   amounts(host)),
       "raise " + Option::device_budget + " and " + Option::host_budget + "; " + device.advice},
      {device.shortage, host.shortage});
}

// Returns the least device budget with which the host budget is enough; nothing if none is. A larger device
// budget never raises the need of the host.
std::optional<uint64_t> least_device_bytes(const ChunkCut& cut, NeedsOf needs_of,
                                           uint64_t host_budget_bytes) {
  const auto is_enough = [&](uint64_t device_bytes) {
    return needs_of(cut.elements, device_bytes).host_minimum_bytes <= host_budget_bytes;
  };
  uint64_t enough = cut.plan.device_minimum_bytes;
  if (cut.plan.host_minimum_bytes <= host_budget_bytes) return enough;
  uint64_t too_little = enough;
  enough = std::max(enough, useful_device_bytes(cut.plan));
  if (!is_enough(enough)) return std::nullopt;
  while (enough - too_little > 1) {
    const uint64_t middle = too_little + (enough - too_little) / 2;
    (is_enough(middle) ? enough : too_little) = middle;
  }
  return enough;
}

// Returns the plan that needs least of the host within the device budget; nothing if no cut fits that budget.
std::optional<MemoryPlan> least_host(std::span<const ChunkCut> cuts, uint64_t device_budget_bytes) {
  const MemoryPlan* least = nullptr;
  for (const ChunkCut& cut : cuts) {
    if (cut.plan.device_minimum_bytes > device_budget_bytes) continue;
    if (least == nullptr || cut.plan.host_minimum_bytes < least->host_minimum_bytes) least = &cut.plan;
  }
  return least == nullptr ? std::nullopt : std::optional(*least);
}

// Throws the shortage of both budgets, because raising either alone is not enough.
[[noreturn]] void refuse_both(std::span<const ChunkCut> cuts, NeedsOf needs_of,
                              const OffloadOptions& options) {
  const ChunkCut& least =
      *std::ranges::min_element(cuts, {}, [](const ChunkCut& cut) { return cut.plan.device_minimum_bytes; });
  const uint64_t device_bytes = least.plan.device_minimum_bytes;
  std::vector<ChunkCut> beside;
  for (const ChunkCut& cut : cuts) {
    if (cut.plan.device_minimum_bytes <= device_bytes)
      beside.push_back({cut.elements, needs_of(cut.elements, device_bytes)});
  }
  refuse(device_need(least.plan, device_bytes, options),
         host_need(*least_host(beside, device_bytes), options));
}

// Orders shortages as the cuts are ordered: of the host alone, of the device alone, of both, and then by
// bytes.
std::tuple<size_t, std::string, uint64_t, uint64_t> order_of(const ShortageError& shortage) {
  const std::vector<TierShortage>& tiers = shortage.tiers();
  const TierShortage& first = tiers.front();
  return {tiers.size(), first.tier == "host" ? "" : first.tier, first.needed_bytes,
          tiers.back().needed_bytes};
}

}  // namespace

std::string missing_text(const TierShortage& shortage) {
  const uint64_t bytes = shortage.missing_bytes();
  if (bytes == 1) return "1 byte is missing";
  if (bytes < kKiB) return fmt::format("{} bytes are missing", bytes);
  return fmt::format("{} bytes ({}) are missing", bytes, format_bytes(bytes));
}

const ShortageError& lesser(const ShortageError& one, const ShortageError& other) {
  return order_of(other) < order_of(one) ? other : one;
}

bool has_too_many_chunks(const SpaceLayout& space, const OffloadOptions& options) {
  const uint64_t chunks = space.chunk_count();
  return chunks > kManyChunks && chunks * kBookkeepingBytesPerChunk > options.host_budget_bytes;
}

void require_bookkeeping(const SpaceLayout& space, const OffloadOptions& options) {
  if (!has_too_many_chunks(space, options)) return;
  const uint64_t bytes = space.chunk_count() * kBookkeepingBytesPerChunk;
  refuse({{"host", options.host_budget_bytes, bytes},
          fmt::format("bookkeeping of {} chunks {}, and more for what they hold", space.chunk_count(),
                      format_bytes(bytes)),
          "choose larger chunks (" + Option::chunk_elements + "), or raise " + Option::host_budget});
}

void refuse_budgets(NeedsOf needs_of, std::span<const ChunkCut> cuts, const OffloadOptions& options) {
  TERRACE_ASSERT(!cuts.empty(), "chunks have a size");
  if (const auto host = least_host(cuts, options.device_budget_bytes)) refuse(host_need(*host, options));
  const ChunkCut* device = nullptr;
  uint64_t device_bytes = UINT64_MAX;
  for (const ChunkCut& cut : cuts) {
    const std::optional<uint64_t> least = least_device_bytes(cut, needs_of, options.host_budget_bytes);
    if (!least || *least >= device_bytes) continue;
    device = &cut;
    device_bytes = *least;
  }
  if (device == nullptr) refuse_both(cuts, needs_of, options);
  refuse(device_need(device->plan, device_bytes, options));
}

}  // namespace terrace
