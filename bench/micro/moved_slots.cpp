// What it costs to make a chunk resident by moving a slot's pages under its address, against copying it
// there. The move should cost the same few microseconds per slot up to many MiB; the copy grows with the
// bytes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <span>

#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/pages.h>

namespace {

using terrace::kKiB;
using terrace::kMiB;

// One attach and one detach per iteration, with a touch of every page in between, as an operation would.
void attach_and_detach(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  constexpr uint32_t kSlots = 4;
  terrace::SimulatedDevice device({.budget_bytes = kSlots * bytes});
  const auto slots = device.create_slots(bytes, kSlots, "chunks");
  std::byte* const flat = device.reserve_addresses(2 * kSlots * bytes);
  uint32_t next = 0;
  for (auto _ : state) {
    device.attach(slots[next % kSlots], flat + (2 * next % (2 * kSlots)) * bytes);
    device.detach(slots[next % kSlots]);
    ++next;
  }
  state.counters["per_move"] =
      benchmark::Counter(2, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(attach_and_detach)->RangeMultiplier(4)->Range(64 * kKiB, 64 * kMiB)->Unit(benchmark::kMicrosecond);

// The same with an operation that reads the chunk in between, which pays for the page table entries it meets.
void attach_read_and_detach(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  terrace::SimulatedDevice device({.budget_bytes = bytes});
  const auto slot = device.create_slots(bytes, 1, "chunks")[0];
  std::byte* const flat = device.reserve_addresses(bytes);
  for (auto _ : state) {
    device.attach(slot, flat);
    uint64_t sum = 0;
    for (uint64_t page = 0; page < bytes; page += terrace::page_bytes())
      sum += static_cast<uint64_t>(flat[page]);
    benchmark::DoNotOptimize(sum);
    device.detach(slot);
  }
}
BENCHMARK(attach_read_and_detach)
    ->RangeMultiplier(4)
    ->Range(64 * kKiB, 64 * kMiB)
    ->Unit(benchmark::kMicrosecond);

// One copy in and one out per iteration.
void copy_in_and_out(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  const auto home = terrace::PageMapping::populated(bytes, bytes >= terrace::kHugePageBytes, "a benchmark");
  const auto flat = terrace::PageMapping::populated(bytes, bytes >= terrace::kHugePageBytes, "a benchmark");
  for (auto _ : state) {
    std::memcpy(flat.memory().data(), home.memory().data(), bytes);
    benchmark::ClobberMemory();
    std::memcpy(home.memory().data(), flat.memory().data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(2 * bytes));
}
BENCHMARK(copy_in_and_out)->RangeMultiplier(4)->Range(64 * kKiB, 64 * kMiB)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
