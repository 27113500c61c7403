#include <terrace/reference/planning/device_rates.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>

#include <terrace/base/clock.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

constexpr uint64_t kDeviceScratchBytes = 256 * kMiB;  // beyond any cache of a GPU
constexpr uint64_t kAlignment = 256;

// What computes on gradients and records, on zeros in scratch memory.
class DeviceMeasurement {
 public:
  DeviceMeasurement(Computing& computing, const RateQuestion& question, uint64_t slot_bytes,
                    uint64_t work_bytes)
      : computing_(computing),
        arithmetic_(*computing.arithmetic()),
        question_(question),
        slot_bytes_(slot_bytes),
        slot_(computing.device().create_slots(slot_bytes, 1, "measuring rates").front()),
        scratch_(computing.device().allocate_work_memory(work_bytes)) {}

  double clear() {
    return rate(static_cast<double>(slot_bytes_),
                [&] { computing_.device().zero_in_order(slot_, 0, slot_bytes_); });
  }
  double sums() {
    const DataType type = question_.parameter_type;
    const Parts parts = cut({kSumBlockElements * bytes_of(type), sizeof(double)});
    const uint64_t count = parts.runs * kSumBlockElements;
    return rate(static_cast<double>(count), [&] {
      arithmetic_.sums_of_squares(parts.at[0], type, count,
                                  {reinterpret_cast<double*>(parts.at[1]), parts.runs});
    });
  }
  double accumulation() {
    const DataType from = question_.parameter_type, to = question_.gradient_type;
    const Parts parts = cut({kTileElements * bytes_of(to), kTileElements * bytes_of(from)});
    const uint64_t count = parts.runs * kTileElements;
    return rate(static_cast<double>(count), [&] {
      arithmetic_.accumulate({.accumulator = parts.at[0],
                              .accumulator_type = to,
                              .gradient = parts.at[1],
                              .gradient_type = from,
                              .count = count,
                              .first = false});
    });
  }
  double update() {
    const OptimizerStep step = make_optimizer_step(question_.optimizer, 2);
    const Parts parts = cut({question_.layout.tile_bytes(), kTileElements * bytes_of(question_.gradient_type),
                             kTileElements * bytes_of(question_.parameter_type)});
    TileRun run;
    run.layout = question_.layout;
    run.record = parts.at[0];
    run.gradients = parts.at[1];
    run.gradient_type = question_.gradient_type;
    run.parameters = parts.at[2];
    run.parameter_type = question_.parameter_type;
    if (question_.layout.master == MasterForm::remainder) run.old_parameters = run.parameters;
    run.element_count = parts.runs * kTileElements;
    return rate(static_cast<double>(run.element_count), [&] { arithmetic_.update_tiles(step, run); });
  }

 private:
  // As many runs of elements as there is memory for, of each of the arrays that they are in.
  struct Parts {
    uint64_t runs = 0;
    std::array<std::byte*, 3> at{};
  };
  Parts cut(std::initializer_list<uint64_t> run_bytes) const {
    const uint64_t room = scratch_.size() - std::min(scratch_.size(), run_bytes.size() * kAlignment);
    Parts parts;
    parts.runs = room / std::accumulate(run_bytes.begin(), run_bytes.end(), uint64_t{0});
    uint64_t begin = 0;
    size_t part = 0;
    for (const uint64_t bytes : run_bytes) {
      parts.at[part++] = scratch_.data() + begin;
      begin = round_up(begin + parts.runs * bytes, kAlignment);
    }
    return parts;
  }
  // Of the fastest round; of nothing: not known.
  double rate(double amount, FunctionRef<void()> round) {
    if (amount == 0) return 0;
    const SteadyClock clock;
    round();
    computing_.wait();
    uint64_t best = UINT64_MAX;
    const uint64_t begin = clock.now_ns();
    do {
      const uint64_t start = clock.now_ns();
      round();
      computing_.wait();
      best = std::min(best, clock.now_ns() - start);
    } while (clock.now_ns() - begin < question_.round_ns);
    return amount / (static_cast<double>(std::max<uint64_t>(best, 1)) * 1e-9);
  }

  Computing& computing_;
  DeviceArithmetic& arithmetic_;
  const RateQuestion& question_;
  const uint64_t slot_bytes_;
  const DeviceSlot slot_;
  const std::span<std::byte> scratch_;
};

}  // namespace

DeviceRates measure_device_rates(const ComputeDevice& compute, const RateQuestion& question,
                                 const DeviceRateBounds& bounds, Workers& workers) {
  DeviceRates rates;
  rates.link = measure_link_rates(compute, bounds.lock_host_memory, workers, bounds.device_bytes);
  const uint64_t granularity = compute.facts().granularity_bytes;
  const uint64_t slot_bytes = std::max(granularity, kSmallSlotBytes);
  if (bounds.device_bytes >= 2 * slot_bytes) {
    const std::unique_ptr<Computing> computing = compute.begin(2 * slot_bytes, false, workers);
    rates.chunk_seconds = measure_chunk_seconds(computing->device(), slot_bytes, question.round_ns);
  }
  const uint64_t part_bytes =
      std::min(kDeviceScratchBytes, bounds.device_bytes) / 2 / granularity * granularity;
  if (part_bytes == 0) return rates;
  const std::unique_ptr<Computing> computing = compute.begin(2 * part_bytes, false, workers);
  if (computing->arithmetic() == nullptr) return rates;
  DeviceMeasurement measurement(*computing, question, part_bytes, part_bytes);
  rates.clear_bytes = measurement.clear();
  rates.sum_elements = measurement.sums();
  rates.accumulate_elements = measurement.accumulation();
  rates.update_elements = measurement.update();
  return rates;
}

}  // namespace terrace
