#include "measure/bench_adam_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include <terrace/base/function_ref.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

// Passes over few elements are repeated until they have updated this many.
constexpr uint64_t kLeastElementsPerMeasurement = uint64_t{32} << 20;
constexpr uint64_t kLineBytes = 64;
// A piece of work has this many lines of each stream.
constexpr uint64_t kLinesPerPiece = 4096;

// A line is 64 bytes at once, in any registers that the processor has for them.
typedef uint64_t CacheLine __attribute__((vector_size(64), may_alias));

// The kernel flips the last bit of every 16, so numbers of any type keep nearly the same value.
#define TERRACE_BENCH_TOUCH(NAME, ATTRIBUTES)                                                    \
  template <size_t kStreams>                                                                     \
  ATTRIBUTES void NAME(std::byte* memory, uint64_t stream_lines, uint64_t begin, uint64_t end) { \
    auto* const first = reinterpret_cast<CacheLine*>(memory);                                    \
    for (uint64_t i = begin; i < end; ++i) {                                                     \
      for (size_t s = 0; s < kStreams; ++s) first[s * stream_lines + i] ^= 0x0001000100010001u;  \
    }                                                                                            \
  }
TERRACE_BENCH_TOUCH(touch_baseline, )
#if defined(__x86_64__)
TERRACE_BENCH_TOUCH(touch_avx2, __attribute__((target("avx2"))))
TERRACE_BENCH_TOUCH(touch_avx512, __attribute__((target("avx512f"))))
#endif
#undef TERRACE_BENCH_TOUCH

template <size_t kStreams>
void touch(std::byte* first, uint64_t stream_lines, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
  const InstructionSet set = best_instruction_set();
  if (set == InstructionSet::avx512) return touch_avx512<kStreams>(first, stream_lines, begin, end);
  if (set == InstructionSet::avx2) return touch_avx2<kStreams>(first, stream_lines, begin, end);
#endif
  touch_baseline<kStreams>(first, stream_lines, begin, end);
}

using Touch = void (*)(std::byte*, uint64_t, uint64_t, uint64_t);
constexpr std::array<Touch, kStreamCounts.size()> kTouches = {touch<1>, touch<3>, touch<4>};

double seconds_of(FunctionRef<void()> work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// AdamBench: records, gradients and parameters in one mapping of huge pages, touched once.
class AdamBench {
 public:
  explicit AdamBench(const AdamPlan& plan)
      : plan_(plan),
        tiles_(plan.elements / kTileElements),
        step_(make_optimizer_step(plan.settings, 10, 0.5f)),
        memory_(PageMapping::populated(plan.memory_bytes(), true, "the measurement")),
        records_(memory_.memory().data()),
        gradients_(records_ + tiles_ * plan.layout.tile_bytes()),
        parameters_(plan.over_gradients() ? gradients_
                                          : gradients_ + plan.elements * bytes_of(plan.gradient_type)) {}

  // Memory is filled with ordinary numbers of the right types, because denormals would cost time that is not
  // the kernel's.
  void fill(Workers& workers) {
    workers.parallel_for(tiles_, [&](size_t tile) {
      std::byte* const record = records_ + tile * plan_.layout.tile_bytes();
      std::array<float, kTileElements> numbers;
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01f * static_cast<float>(i % 61 + 1);
      const auto write = [&](std::byte* to, DataType type) {
        convert_from_float(best_instruction_set(), numbers.data(), to, type, numbers.size());
      };
      if (plan_.layout.master == MasterForm::whole) write(record, DataType::fp32);
      for (uint32_t k = 0; k < plan_.layout.moment_count; ++k)
        write(record + plan_.layout.moment_offset(k), plan_.layout.moment_type);
      write(gradients_ + tile * kTileElements * bytes_of(plan_.gradient_type), plan_.gradient_type);
      if (plan_.over_gradients()) return;
      write(parameters_ + tile * kTileElements * bytes_of(plan_.parameter_type), plan_.parameter_type);
    });
  }

  // Returns the seconds of one pass over all elements, in the blocks in which training cuts them.
  double kernel(Workers& workers, InstructionSet set) {
    const uint64_t block_tiles = plan_.layout.block_tiles();
    const uint64_t passes = divide_up(kLeastElementsPerMeasurement, plan_.elements);
    const auto pass = [&] {
      workers.parallel_for(divide_up(tiles_, block_tiles), [&](size_t block) {
        const uint64_t first = block * block_tiles;
        update(set, first * kTileElements, std::min(block_tiles, tiles_ - first) * kTileElements);
      });
    };
    return seconds_of([&] {
             for (uint64_t i = 0; i < passes; ++i) pass();
           }) /
           static_cast<double>(passes);
  }

  // Returns bytes per second, read plus written, over streams that are equal parts of the memory.
  double touch_streams(Workers& workers, size_t which) {
    const uint64_t stream_lines = plan_.memory_bytes() / kLineBytes / kStreamCounts[which];
    const uint64_t passes = divide_up(kLeastElementsPerMeasurement, plan_.elements);
    const double seconds = seconds_of([&] {
      for (uint64_t i = 0; i < passes; ++i) {
        workers.parallel_for(divide_up(stream_lines, kLinesPerPiece), [&](size_t piece) {
          const uint64_t begin = piece * kLinesPerPiece;
          kTouches[which](records_, stream_lines, begin, std::min(begin + kLinesPerPiece, stream_lines));
        });
      }
    });
    return static_cast<double>(2 * passes * stream_lines * kStreamCounts[which] * kLineBytes) / seconds;
  }

 private:
  void update(InstructionSet set, uint64_t first, uint64_t count) {
    update_tiles(set, step_,
                 {.layout = plan_.layout,
                  .record = records_,
                  .gradients = gradients_,
                  .gradient_type = plan_.gradient_type,
                  .parameters = parameters_,
                  .parameter_type = plan_.parameter_type,
                  .old_parameters = plan_.layout.master == MasterForm::remainder ? parameters_ : nullptr,
                  .first_element = first,
                  .element_count = count});
  }

  const AdamPlan& plan_;
  uint64_t tiles_;
  OptimizerStep step_;
  PageMapping memory_;
  std::byte* records_;
  std::byte* gradients_;
  std::byte* parameters_;
};

}  // namespace

bool AdamPlan::over_gradients() const {
  return layout.master == MasterForm::whole && bytes_of(gradient_type) == bytes_of(parameter_type);
}

double AdamPlan::bytes_per_parameter() const {
  const auto record = static_cast<double>(2 * layout.tile_bytes()) / kTileElements;
  const size_t old = layout.master == MasterForm::remainder ? bytes_of(DataType::bf16) : 0;
  return record + static_cast<double>(bytes_of(gradient_type) + bytes_of(parameter_type) + old);
}

uint64_t AdamPlan::memory_bytes() const {
  const uint64_t outside = bytes_of(gradient_type) + (over_gradients() ? 0 : bytes_of(parameter_type));
  return round_up(elements / kTileElements * layout.tile_bytes() + elements * outside, kHugePageBytes);
}

std::vector<AdamThreads> measure_adam(const AdamPlan& plan, Console& console) {
  console.progress(fmt::format("touching {} of memory", format_bytes(plan.memory_bytes())));
  AdamBench bench(plan);
  std::vector<AdamThreads> results;
  for (const uint64_t threads : plan.threads) {
    results.push_back({.threads = threads, .bound = 0, .stream_bytes_per_second = {}, .kernel_seconds = {}});
    results.back().kernel_seconds.resize(plan.sets.size());
  }
  for (uint64_t round = 0; round <= plan.rounds; ++round) {  // the first round is not counted
    console.progress(round == 0 ? std::string("warming up")
                                : fmt::format("round {} of {}", round, plan.rounds));
    for (AdamThreads& result : results) {
      Workers workers(result.threads, read_topology());
      result.bound = workers.binding().cpus.size();
      if (round == 0) bench.fill(workers);
      for (size_t which = 0; which < kStreamCounts.size(); ++which) {
        const double speed = bench.touch_streams(workers, which);
        if (round > 0) result.stream_bytes_per_second[which].push_back(speed);
      }
      for (size_t set = 0; set < plan.sets.size(); ++set) {
        const double seconds = bench.kernel(workers, plan.sets[set]);
        if (round > 0) result.kernel_seconds[set].push_back(seconds);
      }
    }
  }
  console.end_progress();
  return results;
}

}  // namespace terrace
