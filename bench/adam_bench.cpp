// How close the Adam kernels come to this machine's memory: nanoseconds per parameter and GB/s (1e9 bytes,
// read plus written), beside simple in-place kernels over 1, 3 and 4 streams in the same run. The fraction to
// look at is adam/... over the best read_modify_write/... of the same size and thread count. Never a pass or
// fail.
//
//   adam_bench                                                everything (2.5 GiB of memory, some minutes)
//   adam_bench --benchmark_filter='params:65536/'             a quick look, in cache
//   adam_bench --benchmark_filter='params:16777216/.*threads:2' --benchmark_repetitions=5
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace {

using namespace terrace;

// Memory in huge pages where the system gives them.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(round_up(bytes, 2 * kMiB)) {
    void* mapped =
        mmap(nullptr, bytes_ + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Error(ErrorKind::capacity, {"cannot allocate", format_bytes(bytes_), system_reason(errno),
                                        "choose a smaller size with --benchmark_filter"});
    }
    mapped_ = mapped;
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    data_ = static_cast<std::byte*>(mapped) + (round_up(address, 2 * kMiB) - address);
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(mapped_, bytes_ + 2 * kMiB); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  void* mapped_;
  std::byte* data_;
};

// What every benchmark of one size works on; the records double as the streams of the bandwidth kernels.
struct Buffers {
  explicit Buffers(size_t param_count)
      : params(param_count), records(3 * sizeof(float) * params), gradients(sizeof(float) * params) {}

  // Ordinary values of the right type everywhere: denormals would cost time that is not the kernel's.
  void fill(DataType gradient_type) {
    const auto value = [](size_t i) { return 0.01f * static_cast<float>(i % 61 + 1); };
    auto* floats = reinterpret_cast<float*>(records.data());
    for (size_t i = 0; i < 3 * params; ++i) floats[i] = value(i);
    for (size_t i = 0; i < params; ++i) {
      const float number = value(i);
      convert_from_float(InstructionSet::scalar, &number, gradients.data() + i * bytes_of(gradient_type),
                         gradient_type, 1);
    }
  }

  size_t params;
  Memory records;
  Memory gradients;
};

// One set of buffers at a time: benchmarks are registered size by size.
class BufferCache {
 public:
  Buffers& of(size_t params, DataType gradient_type) {
    if (buffers_ == nullptr || params != buffers_->params) {
      buffers_.reset();
      buffers_ = std::make_unique<Buffers>(params);
    }
    buffers_->fill(gradient_type);
    return *buffers_;
  }

 private:
  std::unique_ptr<Buffers> buffers_;
};

struct Case {
  size_t params;
  size_t threads;
};

constexpr size_t kBlockElements = 16 * kTileElements;

// Runs body(first element, element count) over all blocks, as the optimizer pipeline does.
void for_blocks(Workers& workers, size_t params, const std::function<void(size_t, size_t)>& body) {
  workers.parallel_for(divide_up(params, kBlockElements), [&](size_t block) {
    const size_t first = block * kBlockElements;
    body(first, std::min(kBlockElements, params - first));
  });
}

void report(benchmark::State& state, const Case& c, double bytes_per_param) {
  const double params = static_cast<double>(state.iterations()) * static_cast<double>(c.params);
  state.counters["ns_per_param"] =
      benchmark::Counter(params * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["GB/s"] = benchmark::Counter(params * bytes_per_param * 1e-9, benchmark::Counter::kIsRate);
}

OptimizerStep some_step() {
  return make_optimizer_step({.lr = 1e-3, .weight_decay = 0.01}, 10, 0.5f);
}

void adam_tiles(benchmark::State& state, BufferCache& cache, const Case& c, InstructionSet set,
                DataType type) {
  Buffers& buffers = cache.of(c.params, type);
  Workers workers(c.threads);
  const OptimizerStep step = some_step();
  for (auto _ : state) {
    for_blocks(workers, c.params, [&](size_t first, size_t count) {
      update_tiles(set, step,
                   {.record = buffers.records.data(),
                    .gradients = buffers.gradients.data(),
                    .gradient_type = type,
                    .parameters = buffers.gradients.data(),
                    .parameter_type = type,
                    .first_element = first,
                    .element_count = count});
    });
  }
  report(state, c, 24.0 + 2.0 * static_cast<double>(bytes_of(type)));
}

void adam_arrays(benchmark::State& state, BufferCache& cache, const Case& c, InstructionSet set,
                 DataType type) {
  Buffers& buffers = cache.of(c.params, type);
  Workers workers(c.threads);
  const OptimizerStep step = some_step();
  auto* master = reinterpret_cast<float*>(buffers.records.data());
  for (auto _ : state) {
    for_blocks(workers, c.params, [&](size_t first, size_t count) {
      std::byte* gradients = buffers.gradients.data() + first * bytes_of(type);
      update_arrays(set, step,
                    {.master = reinterpret_cast<std::byte*>(master + first),
                     .moments = {reinterpret_cast<std::byte*>(master + c.params + first),
                                 reinterpret_cast<std::byte*>(master + 2 * c.params + first)},
                     .gradients = gradients,
                     .gradient_type = type,
                     .parameters = gradients,
                     .parameter_type = type,
                     .element_count = count});
    });
  }
  report(state, c, 24.0 + 2.0 * static_cast<double>(bytes_of(type)));
}

void sum_of_squares(benchmark::State& state, BufferCache& cache, const Case& c, InstructionSet set,
                    DataType type) {
  Buffers& buffers = cache.of(c.params, type);
  Workers workers(c.threads);
  std::vector<double> sums(c.params / kSumBlockElements);
  for (auto _ : state) {
    for_blocks(workers, c.params, [&](size_t first, size_t count) {
      for (size_t i = first; i < first + count; i += kSumBlockElements) {
        sums[i / kSumBlockElements] =
            sum_of_squares_block(set, buffers.gradients.data() + i * bytes_of(type), type, kSumBlockElements);
      }
    });
    GradientNorm norm;
    norm.add_blocks(sums);
    benchmark::DoNotOptimize(norm);
  }
  report(state, c, static_cast<double>(bytes_of(type)));
}

// In-place kernels of one multiplication and one addition over `kStreams` arrays at once, in vectors of 64
// bytes. A function that differs from its neighbours in nothing but the instructions it may use.
typedef float Line __attribute__((vector_size(64), aligned(4), may_alias));

#define TERRACE_BENCH_TOUCH(NAME, ATTRIBUTES)                                      \
  template <size_t kStreams>                                                       \
  ATTRIBUTES void NAME(float* const* streams, size_t first, size_t count) {        \
    for (size_t i = first; i < first + count; i += sizeof(Line) / sizeof(float)) { \
      for (size_t s = 0; s < kStreams; ++s) {                                      \
        auto* line = reinterpret_cast<Line*>(streams[s] + i);                      \
        *line = *line * 0.999f + 0.001f;                                           \
      }                                                                            \
    }                                                                              \
  }
TERRACE_BENCH_TOUCH(touch_scalar, )
#if defined(__x86_64__)
TERRACE_BENCH_TOUCH(touch_avx2, __attribute__((target("avx2"))))
TERRACE_BENCH_TOUCH(touch_avx512, __attribute__((target("avx512f"))))
#endif

template <size_t kStreams>
void touch(InstructionSet set, float* const* streams, size_t first, size_t count) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return touch_avx512<kStreams>(streams, first, count);
  if (set == InstructionSet::avx2) return touch_avx2<kStreams>(streams, first, count);
#endif
  static_cast<void>(set);
  touch_scalar<kStreams>(streams, first, count);
}

// Counted per parameter as 8 bytes for each stream.
template <size_t kStreams>
void read_modify_write(benchmark::State& state, BufferCache& cache, const Case& c, InstructionSet set) {
  Buffers& buffers = cache.of(c.params, DataType::fp32);
  Workers workers(c.threads);
  auto* floats = reinterpret_cast<float*>(buffers.records.data());
  float* const streams[4] = {floats, floats + c.params, floats + 2 * c.params,
                             reinterpret_cast<float*>(buffers.gradients.data())};
  for (auto _ : state) {
    for_blocks(workers, c.params,
               [&](size_t first, size_t count) { touch<kStreams>(set, streams, first, count); });
  }
  report(state, c, 8.0 * kStreams);
}

void add(const std::string& name, const std::string& variant, const Case& c,
         std::function<void(benchmark::State&)> body) {
  const std::string full =
      name + "/params:" + std::to_string(c.params) + "/" + variant + "/threads:" + std::to_string(c.threads);
  benchmark::RegisterBenchmark(full.c_str(), std::move(body))
      ->UseRealTime()
      ->MeasureProcessCPUTime()
      ->Unit(benchmark::kMillisecond);
}

void register_case(BufferCache& cache, const Case& c) {
  const InstructionSet best = best_instruction_set();
  add("read_modify_write/streams:1", std::string(name_of(best)), c,
      [&cache, c, best](benchmark::State& state) { read_modify_write<1>(state, cache, c, best); });
  add("read_modify_write/streams:3", std::string(name_of(best)), c,
      [&cache, c, best](benchmark::State& state) { read_modify_write<3>(state, cache, c, best); });
  add("read_modify_write/streams:4", std::string(name_of(best)), c,
      [&cache, c, best](benchmark::State& state) { read_modify_write<4>(state, cache, c, best); });
  for (const InstructionSet set : supported_instruction_sets()) {
    for (const DataType type : {DataType::bf16, DataType::fp16, DataType::fp32}) {
      const std::string variant = std::string(name_of(type)) + "/" + std::string(name_of(set));
      add("adam/tiles", variant, c,
          [&cache, c, set, type](benchmark::State& state) { adam_tiles(state, cache, c, set, type); });
      add("adam/arrays", variant, c,
          [&cache, c, set, type](benchmark::State& state) { adam_arrays(state, cache, c, set, type); });
      add("sum_of_squares", variant, c,
          [&cache, c, set, type](benchmark::State& state) { sum_of_squares(state, cache, c, set, type); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  BufferCache cache;
  for (const size_t params : {size_t{64} << 10, size_t{16} << 20, size_t{128} << 20}) {
    for (const size_t threads : {size_t{1}, size_t{2}}) register_case(cache, {params, threads});
  }
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::fprintf(stderr, "adam_bench: %s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
