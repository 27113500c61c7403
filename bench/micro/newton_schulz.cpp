// The step of a whole matrix (Muon): seconds, and floating-point operations per second by the count of the
// plain formulas, 2 m^2 (2 n + m) in an iteration for m rows of n columns, m <= n.
//
//   build/release/bench/newton_schulz [--threads=N]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/products/newton_schulz.h>

using namespace terrace;

namespace {

constexpr OptimizerSettings kMuon{.kind = OptimizerKind::muon, .eps = 1e-7, .momentum = 0.95};

double operations(const MatrixShape& shape) {
  const auto m = static_cast<double>(std::min(shape.rows, shape.columns));
  const auto n = static_cast<double>(std::max(shape.rows, shape.columns));
  return kMuon.muon.iterations * 2 * m * m * (2 * n + m);
}

void make_steps(benchmark::State& state, const MatrixShape& shape, ProductType type, size_t threads) {
  Workers workers(threads);
  const NewtonSchulz newton_schulz(workers, best_instruction_set(), type);
  std::vector<Bf16> matrix(shape.rows * shape.columns);
  PageMapping work = PageMapping::populated(NewtonSchulz::work_bytes(shape), true, "products");
  for (auto _ : state) {
    for (size_t i = 0; i < matrix.size(); ++i)
      matrix[i] = to_bf16(0.01f * static_cast<float>(i * 7919 % 61) - 0.3f);
    newton_schulz.run(shape, kMuon, matrix.data(), work.memory());
  }
  state.counters["operations_per_second"] =
      benchmark::Counter(operations(shape), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  size_t threads = 0;
  for (const std::string_view argument : std::span(argv + 1, static_cast<size_t>(argc - 1))) {
    if (argument.starts_with("--threads="))
      std::from_chars(argument.data() + 10, argument.data() + argument.size(), threads);
  }
  for (const MatrixShape shape : {MatrixShape{768, 768}, {768, 3072}, {2048, 2048}, {4096, 1024}}) {
    for (const ProductType type : {ProductType::fp32, ProductType::bf16, ProductType::bf16_amx}) {
      benchmark::RegisterBenchmark(
          fmt::format("newton_schulz/{}x{}/{}", shape.rows, shape.columns, name_of(type)).c_str(),
          [=](benchmark::State& state) { make_steps(state, shape, type, threads); })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
