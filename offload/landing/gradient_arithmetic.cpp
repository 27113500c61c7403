#include <terrace/offload/landing/gradient_arithmetic.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/units.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

constexpr uint64_t kBlockElements = kSumBlockElements;
static_assert(kBlockElements == kTileElements, "the block of a sum is a tile");
constexpr uint64_t kTaskBlocks = 16;

// The sums of an accumulator from an element of the own part on, the second with groups only.
struct Sums {
  std::byte* step;
  std::byte* group;  // null without groups
  DataType type;
};
Sums sums_at(uint64_t own_elements, std::byte* accumulator, uint64_t element, DataType type,
             const StepRounds& rounds) {
  std::byte* const step = accumulator + element * bytes_of(type);
  return {step, rounds.has_groups() ? step + own_elements * bytes_of(type) : nullptr, type};
}

// Goes through the steps of a run's landing, with `clear(sum)` and `add(sum, from, type of from, replaces)`.
template <typename Clear, typename Add>
void go_through(const GradientRun& run, const GradientLanding& landing, const StepRounds& rounds,
                const Sums& sums, const std::byte* gradient, DataType gradient_type, Clear clear, Add add) {
  const LandingSteps steps = landing.is_group_sum
                                 ? group_sum_steps(run, landing.micro_batch, rounds)
                                 : landing_steps(run, landing.micro_batch, gradient != nullptr, rounds);
  if (steps.clears) clear(sums.step);
  if (steps.joins_before) add(sums.step, sums.group, sums.type, steps.is_first_group);
  if (steps.clears_group) clear(sums.group);
  if (gradient != nullptr)
    add(sums.group != nullptr && !steps.passes_group ? sums.group : sums.step, gradient, gradient_type,
        steps.replaces);
  if (steps.joins_after) add(sums.step, sums.group, sums.type, steps.is_only_group);
}

}  // namespace

ArithmeticByWorkers::ArithmeticByWorkers(const FlatSpace& space, GradientSums sums,
                                         const OffloadOptions& options, Workers& workers,
                                         InstructionSet instruction_set, StepWatch& watch)
    : space_(space),
      sums_(std::move(sums)),
      options_(options),
      workers_(workers),
      instruction_set_(instruction_set),
      watch_(watch) {}

void ArithmeticByWorkers::take(std::span<const ChunkId> chunks, Tiles tiles) {
  task_ends_.clear();
  size_t tasks = 0;
  for (const ChunkId chunk : chunks)
    task_ends_.push_back(tasks += options_.dry ? 0 : divide_up(sums_.of(chunk).size(), kTaskBlocks));
  const ComputingScope computing(watch_);
  workers_.parallel_for(tasks, [&](size_t task) {
    const auto place = static_cast<size_t>(std::ranges::upper_bound(task_ends_, task) - task_ends_.begin());
    const ChunkId chunk = chunks[place];
    const uint64_t first = (task - (place == 0 ? 0 : task_ends_[place - 1])) * kTaskBlocks;
    const std::span<double> sums = sums_.of(chunk);
    const DataType type = space_.section_of(chunk).type;
    alignas(64) std::byte scratch[kBlockElements * sizeof(float)];
    for (uint64_t b = first; b < std::min(sums.size(), first + kTaskBlocks); ++b)
      sums[b] = sum_of_squares_block(instruction_set_, tiles(chunk, b, scratch), type, kBlockElements);
  });
  for (const ChunkId chunk : chunks) sums_.note_complete(chunk);
}

void ArithmeticByWorkers::add(const GradientLanding& landing, std::byte* accumulator,
                              const std::byte* gradient, bool takes_sums) {
  const uint64_t first = landing.runs.front().first_element / kBlockElements;
  const uint64_t end = divide_up(landing.runs.back().end(), kBlockElements);
  const ComputingScope computing(watch_);
  workers_.parallel_for(options_.dry ? 0 : divide_up(end - first, kTaskBlocks), [&](size_t task) {
    const uint64_t begin = first + task * kTaskBlocks;
    for (uint64_t b = begin; b < std::min(end, begin + kTaskBlocks); ++b)
      add_block(landing, b, accumulator, gradient, takes_sums);
  });
  if (landing.ends) sums_.note_complete(landing.chunk);
}

// The sum of a block is right once its last run has been added.
void ArithmeticByWorkers::add_block(const GradientLanding& landing, uint64_t block, std::byte* accumulator,
                                    const std::byte* gradient, bool takes_sum) {
  const Section& section = space_.section_of(landing.chunk);
  const DataType sum_type = held_gradient_type(section, options_);
  const DataType type = landing.is_group_sum ? sum_type : section.type;
  const StepRounds rounds = rounds_of(options_);
  const uint64_t own_elements = sums_.of(landing.chunk).size() * kBlockElements;
  const uint64_t begin = block * kBlockElements, end = begin + kBlockElements;
  bool has_landed = false, has_sum = false;
  for (const GradientRun& run : landing.runs) {
    const uint64_t first = std::max(begin, run.first_element), last = std::min(end, run.end());
    if (first >= last) continue;
    has_landed = true;
    const Sums at = sums_at(own_elements, accumulator, first, sum_type, rounds);
    const auto clear = [&](std::byte* sum) { std::memset(sum, 0, (last - first) * bytes_of(sum_type)); };
    const auto add = [&](std::byte* sum, const std::byte* from, DataType from_type, bool replaces) {
      const Accumulation part{.accumulator = sum,
                              .accumulator_type = sum_type,
                              .gradient = from,
                              .gradient_type = from_type,
                              .count = last - first,
                              .first = replaces,
                              .bits = sum == at.step ? rounds.gradient_bits : 0};
      if (!takes_sum || part.count != kBlockElements || sum != at.step)
        return accumulate(instruction_set_, part);
      sums_.of(landing.chunk)[block] = accumulate_block(instruction_set_, part);
      has_sum = true;
    };
    go_through(run, landing, rounds, at, gradient != nullptr ? gradient + first * bytes_of(type) : nullptr,
               type, clear, add);
  }
  if (!has_landed || !takes_sum || has_sum) return;
  sums_.of(landing.chunk)[block] = sum_of_squares_block(
      instruction_set_, accumulator + begin * bytes_of(sum_type), sum_type, kBlockElements);
}

void ArithmeticByDevice::take(std::span<const ChunkId> chunks, Tiles) {
  for (const ChunkId chunk : chunks) sums_.note_complete(chunk);
}

void ArithmeticByDevice::add(const GradientLanding& landing, std::byte* accumulator,
                             const std::byte* gradient, bool) {
  const DataType sum_type = options_.accumulation_type;
  const DataType type = landing.is_group_sum ? sum_type : space_.section_of(landing.chunk).type;
  const StepRounds rounds = rounds_of(options_);
  const uint64_t own_elements = sums_.of(landing.chunk).size() * kBlockElements;
  for (const GradientRun& run : landing.runs) {
    const Sums at = sums_at(own_elements, accumulator, run.first_element, sum_type, rounds);
    const auto clear = [&](std::byte* sum) { arithmetic_.set_zero(sum, sum_type, run.element_count); };
    const auto add = [&](std::byte* sum, const std::byte* from, DataType from_type, bool replaces) {
      arithmetic_.accumulate({.accumulator = sum,
                              .accumulator_type = sum_type,
                              .gradient = from,
                              .gradient_type = from_type,
                              .count = run.element_count,
                              .first = replaces,
                              .bits = sum == at.step ? rounds.gradient_bits : 0});
    };
    go_through(run, landing, rounds, at,
               gradient != nullptr ? gradient + run.first_element * bytes_of(type) : nullptr, type, clear,
               add);
  }
  if (landing.ends) sums_.note_complete(landing.chunk);
}

void ArithmeticByDevice::finish_step(GradientSource& gradients) {
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!sums_.is_complete(chunk)) continue;
    gradients.open(chunk);
    device_sums_.add(gradients.gradient(chunk), gradients.type(chunk), space_.chunk(chunk).elements,
                     sums_.of(chunk));
    gradients.close(chunk);
  }
  device_sums_.finish();
}

}  // namespace terrace
