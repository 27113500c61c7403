// The optimizers' kernels beside simple kernels that read, change and write streams of the same memory in
// place. What a kernel moves per second, divided by what the best of these does with as many threads, is its
// share of the bandwidth of this machine.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/record_layout.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/optimizer_cpu/optimizer_table.h>

namespace {

using namespace terrace;

// Elements unless --parameters=N says others.
constexpr uint64_t kElements = uint64_t{128} << 20;
// Of a record, a gradient and a parameter.
constexpr uint64_t kMostElementBytes = 3 * sizeof(float) + 2 * bytes_of(DataType::bf16);
constexpr uint64_t kLineBytes = 64;
// A piece of work has this many lines of each stream.
constexpr uint64_t kLinesPerPiece = 4096;

// A line is 64 bytes at once, in any registers that the processor has for them.
typedef uint64_t CacheLine __attribute__((vector_size(64), may_alias));

// The kernel flips the last bit of every 16, so numbers of any type keep nearly the same value.
#define TERRACE_MICRO_TOUCH(NAME, ATTRIBUTES)                                                   \
  template <size_t kStreams>                                                                    \
  ATTRIBUTES void NAME(CacheLine* first, uint64_t stream_lines, uint64_t begin, uint64_t end) { \
    for (uint64_t i = begin; i < end; ++i) {                                                    \
      for (size_t s = 0; s < kStreams; ++s) first[s * stream_lines + i] ^= 0x0001000100010001u; \
    }                                                                                           \
  }
TERRACE_MICRO_TOUCH(touch_baseline, )
#if defined(__x86_64__)
TERRACE_MICRO_TOUCH(touch_avx2, __attribute__((target("avx2"))))
TERRACE_MICRO_TOUCH(touch_avx512, __attribute__((target("avx512f"))))
#endif
#undef TERRACE_MICRO_TOUCH

template <size_t kStreams>
void touch(CacheLine* first, uint64_t stream_lines, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
  const InstructionSet set = best_instruction_set();
  if (set == InstructionSet::avx512) return touch_avx512<kStreams>(first, stream_lines, begin, end);
  if (set == InstructionSet::avx2) return touch_avx2<kStreams>(first, stream_lines, begin, end);
#endif
  touch_baseline<kStreams>(first, stream_lines, begin, end);
}

// What one benchmark updates, and how.
struct Update {
  const OptimizerRow& optimizer;
  RecordLayout layout;
  InstructionSet set;
  uint64_t threads;

  OptimizerSettings settings() const {
    return {.kind = optimizer.kind,
            .lr = 1e-4,
            .beta2 = optimizer.beta2,
            .weight_decay = 0.01,
            .adamw_mode = optimizer.decays_apart,
            .momentum = optimizer.has_momentum ? 0.9 : 0.0};
  }
  bool is_compact() const { return layout.master == MasterForm::remainder; }
  std::string name() const {
    return fmt::format("update/{}/{}/{}_moments/{}/threads:{}", optimizer.word,
                       is_compact() ? "compact" : "whole", name_of(layout.moment_type), name_of(set),
                       threads);
  }
  // Read and written.
  double bytes_per_parameter() const {
    const auto record = static_cast<double>(2 * layout.tile_bytes()) / kTileElements;
    return record + static_cast<double>((is_compact() ? 3 : 2) * bytes_of(DataType::bf16));
  }
};

// Records, bf16 gradients and bf16 parameters in one mapping of huge pages, touched once. Whole masters make
// parameters over the gradients, as training does; compact ones lie beside the parameters that they need.
class Kernels {
 public:
  explicit Kernels(uint64_t elements)
      : elements_(round_up(elements, kTileElements)),
        memory_(PageMapping::populated(round_up(elements_ * kMostElementBytes, kHugePageBytes), true,
                                       "the kernels")) {}

  void update(benchmark::State& state, const Update& one) {
    Workers workers(one.threads, read_topology());
    fill(workers, one);
    const OptimizerStep step = make_optimizer_step(one.settings(), 10, 0.5f);
    const uint64_t tiles = elements_ / kTileElements, block_tiles = one.layout.block_tiles();
    for (auto _ : state) {
      // In the blocks in which training cuts them.
      workers.parallel_for(divide_up(tiles, block_tiles), [&](size_t block) {
        const uint64_t first = block * block_tiles;
        update_tiles(one.set, step,
                     {.layout = one.layout,
                      .record = memory_.memory().data(),
                      .gradients = gradients(one),
                      .gradient_type = DataType::bf16,
                      .parameters = parameters(one),
                      .parameter_type = DataType::bf16,
                      .old_parameters = one.is_compact() ? parameters(one) : nullptr,
                      .first_element = first * kTileElements,
                      .element_count = std::min(block_tiles, tiles - first) * kTileElements});
      });
    }
    const auto elements = static_cast<double>(elements_);
    state.SetBytesProcessed(
        static_cast<int64_t>(static_cast<double>(state.iterations()) * elements * one.bytes_per_parameter()));
    using benchmark::Counter;
    state.counters["per_parameter"] =
        Counter(elements, Counter::kIsIterationInvariantRate | Counter::kInvert);
  }

  // Streams that are equal parts of the memory.
  template <size_t kStreams>
  void touch_streams(benchmark::State& state, uint64_t threads) {
    Workers workers(threads, read_topology());
    auto* const lines = reinterpret_cast<CacheLine*>(memory_.memory().data());
    const uint64_t stream_lines = memory_.memory().size() / kLineBytes / kStreams;
    for (auto _ : state) {
      workers.parallel_for(divide_up(stream_lines, kLinesPerPiece), [&](size_t piece) {
        const uint64_t begin = piece * kLinesPerPiece;
        touch<kStreams>(lines, stream_lines, begin, std::min(begin + kLinesPerPiece, stream_lines));
      });
    }
    state.SetBytesProcessed(state.iterations() *
                            static_cast<int64_t>(2 * stream_lines * kStreams * kLineBytes));
  }

 private:
  std::byte* gradients(const Update& one) const {
    return memory_.memory().data() + elements_ / kTileElements * one.layout.tile_bytes();
  }
  std::byte* parameters(const Update& one) const {
    return gradients(one) + (one.is_compact() ? elements_ * bytes_of(DataType::bf16) : 0);
  }

  // With ordinary numbers of the right types, because denormals would cost time that is not the kernel's.
  void fill(Workers& workers, const Update& one) {
    workers.parallel_for(elements_ / kTileElements, [&](size_t tile) {
      std::array<float, kTileElements> numbers;
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01f * static_cast<float>(i % 61 + 1);
      const auto write = [&](std::byte* to, DataType type) {
        convert_from_float(best_instruction_set(), numbers.data(), to, type, numbers.size());
      };
      std::byte* const record = memory_.memory().data() + tile * one.layout.tile_bytes();
      if (!one.is_compact()) write(record, DataType::fp32);
      for (uint32_t k = 0; k < one.layout.moment_count && !one.layout.has_codes(); ++k)
        write(record + one.layout.moment_offset(k), number_type_of(one.layout.moment_type));
      if (one.layout.has_codes())
        encode_moments(one.set, one.layout, {numbers.data(), numbers.data()}, record);
      for (std::byte* const each : {gradients(one), parameters(one)})
        write(each + tile * kTileElements * bytes_of(DataType::bf16), DataType::bf16);
    });
  }

  const uint64_t elements_;
  PageMapping memory_;
};

void register_updates(Kernels& kernels, uint64_t threads) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.kind == OptimizerKind::muon) continue;  // newton_schulz.cpp: its products take all the time
    for (const MasterForm master : {MasterForm::whole, MasterForm::remainder}) {
      for (const MomentType moments : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
        for (const InstructionSet set : supported_instruction_sets()) {
          const uint32_t count = moment_count(row.kind, row.has_momentum ? 0.9 : 0.0);
          const Update one{row, {master, count, moments}, set, threads};
          benchmark::RegisterBenchmark(one.name().c_str(), [&kernels, one](benchmark::State& state) {
            kernels.update(state, one);
          })->UseRealTime();
        }
      }
    }
  }
}

template <size_t kStreams>
void register_touch(Kernels& kernels, uint64_t threads) {
  benchmark::RegisterBenchmark(
      fmt::format("read_modify_write/{}_streams/threads:{}", kStreams, threads).c_str(),
      [&kernels, threads](benchmark::State& state) { kernels.touch_streams<kStreams>(state, threads); })
      ->UseRealTime();
}

// The value of `--name=N` among the arguments that Google Benchmark has left, if it is there.
uint64_t number_of(std::span<char* const> arguments, std::string_view name, uint64_t value) {
  for (const std::string_view argument : arguments) {
    if (!argument.starts_with(name)) continue;
    const char* const end = argument.data() + argument.size();
    if (std::from_chars(argument.data() + name.size(), end, value).ptr != end || value == 0) {
      fmt::print(stderr, "{}: it takes a whole number of at least 1\n", argument);
      std::exit(2);
    }
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::span<char* const> arguments(argv + 1, static_cast<size_t>(argc - 1));
  Kernels kernels(number_of(arguments, "--parameters=", kElements));
  const uint64_t threads = number_of(arguments, "--threads=", 1);
  register_touch<1>(kernels, threads);
  register_touch<3>(kernels, threads);
  register_touch<4>(kernels, threads);
  register_updates(kernels, threads);
  benchmark::RunSpecifiedBenchmarks();
}
