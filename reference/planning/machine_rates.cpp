#include <terrace/reference/planning/machine_rates.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/checksum.h>
#include <terrace/base/clock.h>
#include <terrace/base/event.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/runtime/config/parameter_groups.h>

namespace terrace {
namespace {

constexpr uint64_t kScratchBytes = 64 * kMiB;  // beyond any cache

// Amount per second of the fastest round: what disturbs a round only makes it slower.
double fastest(double amount, uint64_t least_ns, FunctionRef<void()> round) {
  const SteadyClock clock;
  round();  // pages and caches
  uint64_t best = UINT64_MAX;
  const uint64_t begin = clock.now_ns();
  do {
    const uint64_t start = clock.now_ns();
    round();
    best = std::min(best, clock.now_ns() - start);
  } while (clock.now_ns() - begin < least_ns);
  return amount / (static_cast<double>(std::max<uint64_t>(best, 1)) * 1e-9);
}

class Measurement {
 public:
  Measurement(const RateQuestion& question, Workers& workers)
      : question_(question),
        workers_(workers),
        set_(best_instruction_set()),
        step_(make_optimizer_step(question.optimizer, 2)),
        from_(PageMapping::populated(kScratchBytes, true, "measuring rates")),
        to_(PageMapping::populated(kScratchBytes, true, "measuring rates")) {
    std::memset(from_.memory().data(), 0, kScratchBytes);
  }

  double copy() {
    return rate(kScratchBytes,
                [&] { std::memcpy(to_.memory().data(), from_.memory().data(), kScratchBytes); });
  }
  double clear() {
    return rate(kScratchBytes, [&] { std::memset(to_.memory().data(), 0, kScratchBytes); });
  }
  double checksum() {
    const std::span<std::byte> ring = from_.memory().first(question_.ring_bytes);
    return rate(static_cast<double>(ring.size()), [&] {
      for (uint64_t at = 0; at < ring.size(); at += kMiB) sum_ += checksum_of(ring.subspan(at, kMiB));
    });
  }
  double sums() {
    const uint64_t blocks = blocks_of(bytes_of(question_.parameter_type));
    return rate(static_cast<double>(blocks * kSumBlockElements), [&] {
      over_blocks(blocks, [&](uint64_t block) {
        const uint64_t at = block * kSumBlockElements * bytes_of(question_.parameter_type);
        sum_of_squares_block(set_, from_.memory().data() + at, question_.parameter_type, kSumBlockElements);
      });
    });
  }
  double accumulation() {
    const uint64_t blocks = blocks_of(sizeof(float));
    return rate(static_cast<double>(blocks * kSumBlockElements), [&] {
      over_blocks(blocks, [&](uint64_t block) {
        accumulate(set_, {.accumulator = to_.memory().data() + block * kSumBlockElements * sizeof(float),
                          .accumulator_type = question_.gradient_type,
                          .gradient = from_.memory().data() +
                                      block * kSumBlockElements * bytes_of(question_.parameter_type),
                          .gradient_type = question_.parameter_type,
                          .count = kSumBlockElements,
                          .first = false});
      });
    });
  }
  // One thread goes round in the ring; gradients and parameters come from memory.
  double update_alone() {
    const uint64_t block_tiles = question_.layout.block_tiles();
    const uint64_t slots =
        std::max<uint64_t>(question_.ring_bytes / (block_tiles * question_.layout.tile_bytes()), 1);
    const uint64_t blocks = 4 * slots;
    return rate(static_cast<double>(blocks * block_tiles * kTileElements), [&] {
      for (uint64_t block = 0; block < blocks; ++block) update(block % slots, block, block_tiles);
    });
  }
  double update_together() {
    const uint64_t block_tiles = question_.layout.block_tiles();
    const uint64_t blocks = kScratchBytes / (block_tiles * question_.layout.tile_bytes());
    return rate(static_cast<double>(blocks * block_tiles * kTileElements), [&] {
      workers_.parallel_for(blocks, [&](size_t block) { update(block, block, block_tiles); });
    });
  }

 private:
  double rate(double amount, FunctionRef<void()> round) const {
    return fastest(amount, question_.round_ns, round);
  }
  uint64_t blocks_of(uint64_t element_bytes) const {
    return kScratchBytes / (kSumBlockElements * element_bytes);
  }
  template <typename Body>
  void over_blocks(uint64_t blocks, Body body) {
    constexpr uint64_t kTaskBlocks = 16;
    workers_.parallel_for(divide_up(blocks, kTaskBlocks), [&](size_t task) {
      for (uint64_t b = task * kTaskBlocks; b < std::min(blocks, (task + 1) * kTaskBlocks); ++b) body(b);
    });
  }
  void update(uint64_t slot, uint64_t block, uint64_t block_tiles) {
    const uint64_t elements = block_tiles * kTileElements;
    const uint64_t stride = elements * sizeof(float);
    const uint64_t place = block % (kScratchBytes / (2 * stride)) * 2 * stride;
    TileRun run;
    run.layout = question_.layout;
    run.record = from_.memory().data() + slot * block_tiles * question_.layout.tile_bytes();
    run.gradients = to_.memory().data() + place;
    run.gradient_type = question_.gradient_type;
    run.parameters = to_.memory().data() + place + stride;
    run.parameter_type = question_.parameter_type;
    if (question_.layout.master == MasterForm::remainder) run.old_parameters = run.parameters;
    run.element_count = elements;
    update_tiles(set_, step_, run);
  }

  const RateQuestion& question_;
  Workers& workers_;
  const InstructionSet set_;
  const OptimizerStep step_;
  const PageMapping from_;
  const PageMapping to_;
  uint64_t sum_ = 0;
};

}  // namespace

RateQuestion rate_question(const TrainConfig& config) {
  GroupSettings groups(config, 1);
  RateQuestion question;
  question.layout = record_layout(config);
  question.optimizer = groups.at(0).front();
  question.parameter_type = config.precision;
  question.gradient_type =
      config.batch.micro_batches > 1 ? config.grad_accum_type.value_or(DataType::fp32) : config.precision;
  return question;
}

MachineRates measure_rates(const RateQuestion& question, Workers& workers) {
  Measurement measurement(question, workers);
  MachineRates rates;
  rates.thread_count = workers.thread_count();
  rates.copy_bytes = measurement.copy();
  rates.clear_bytes = measurement.clear();
  SimulatedDevice device({.budget_bytes = 2 * kSmallSlotBytes});
  rates.chunk_seconds = measure_chunk_seconds(device, kSmallSlotBytes, question.round_ns);
  rates.checksum_bytes = measurement.checksum();
  rates.sum_elements = measurement.sums();
  rates.accumulate_elements = measurement.accumulation();
  rates.update_elements = measurement.update_alone();
  rates.update_together_elements = measurement.update_together();
  return rates;
}

RankLinks rank_links(const MachineRates& rates, const TrainConfig& config) {
  return {.ranks = config.batch.ranks,
          .on_host = std::min(config.ranks_on_host, config.batch.ranks),
          .message_seconds = rates.rank_seconds,
          .bytes = rates.rank_bytes,
          .network_message_seconds = rates.network_seconds,
          .network_bytes = rates.network_bytes,
          .network_delay = rates.network_delay};
}

bool knows_ranks(const MachineRates& rates, const TrainConfig& config) {
  const uint32_t ranks = config.batch.ranks;
  const uint32_t on_host = std::min(config.ranks_on_host, ranks);
  return (on_host == 1 || rates.rank_bytes > 0) && (on_host == ranks || rates.network_bytes > 0);
}

double measure_chunk_seconds(Device& device, uint64_t slot_bytes, uint64_t round_ns) {
  constexpr uint32_t kRounds = 32;
  constexpr uint64_t kCopiedBytes = 64;  // next to nothing
  const std::vector<DeviceSlot> slots = device.create_slots(slot_bytes, 2, "measuring rates");
  std::byte* const addresses = device.reserve_addresses(2 * slot_bytes);
  const std::vector<std::byte> bytes(kCopiedBytes);
  Event copied;
  const auto come_and_go = [&] {
    for (uint32_t i = 0; i < kRounds; ++i) {
      const DeviceSlot slot = slots[i % 2];
      copied.begin();
      device.copy_to_device(slot, 0, bytes.data(), bytes.size(), nullptr, copied, {});
      copied.wait();
      device.attach(slot, addresses + i % 2 * slot_bytes);
      device.detach(slot);
    }
  };
  return 1 / fastest(kRounds, round_ns, come_and_go);
}

namespace {

void add_device_rates(const DeviceRates& device, const std::string& origin,
                      std::vector<PredictedRate>& named) {
  const auto add = [&](const char* name, double value, const char* unit) {
    if (value > 0) named.push_back({name, value * 1e-9, unit, origin});
  };
  add("copies to the device", device.link.to_device, "GB/s");
  add("copies from the device", device.link.to_host, "GB/s");
  add("copies both ways at once, each", device.link.each_way, "GB/s");
  add("zeros on the device", device.clear_bytes, "GB/s");
  add("sums over gradients there", device.sum_elements, "G elements/s");
  add("gradients added up there", device.accumulate_elements, "G elements/s");
  add("update there", device.update_elements, "G elements/s");
}

}  // namespace

double measure_update_rate(const RateQuestion& question, bool together, Workers& workers) {
  Measurement measurement(question, workers);
  return together ? measurement.update_together() : measurement.update_alone();
}

std::vector<PredictedRate> named_rates(const MachineRates& rates) {
  std::vector<PredictedRate> named;
  const auto add = [&](const char* name, double value, double unit, const char* text, std::string origin) {
    if (value > 0) named.push_back({name, value / unit, text, std::move(origin)});
  };
  add("copies between host and device", rates.copy_bytes, 1e9, "GB/s", rates.origin);
  add("zeros for gradients", rates.clear_bytes, 1e9, "GB/s", rates.origin);
  add("a chunk that comes and goes, beside its bytes", rates.chunk_seconds, 1e-6, "us", rates.origin);
  add("sums over gradients", rates.sum_elements, 1e9, "G elements/s", rates.origin);
  add("gradients added up", rates.accumulate_elements, 1e9, "G elements/s", rates.origin);
  add("update by one thread", rates.update_elements, 1e9, "G elements/s", rates.origin);
  add("update by all threads", rates.update_together_elements, 1e9, "G elements/s", rates.origin);
  if (rates.device) add_device_rates(*rates.device, rates.origin, named);
  add("checksums", rates.checksum_bytes, 1e9, "GB/s", rates.origin);
  add("nvme reads", rates.disk_read_bytes, 1e9, "GB/s", rates.disk_origin);
  add("nvme writes", rates.disk_write_bytes, 1e9, "GB/s", rates.disk_origin);
  add("nvme, reads and writes mixed", rates.disk_mixed_bytes, 1e9, "GB/s", rates.disk_origin);
  const std::string of_ranks = rates.given_ranks ? "given" : rates.origin;
  add("from ranks of this host, both ways at once", rates.rank_bytes, 1e9, "GB/s", of_ranks);
  add("a message between them, beside its bytes", rates.rank_seconds, 1e-6, "us", of_ranks);
  add("from ranks of other hosts", rates.network_bytes, 1e9, "GB/s", "given");
  add("a message between hosts, beside its bytes", rates.network_seconds, 1e-6, "us", "given");
  add("its time on the way", rates.network_delay, 1e-6, "us", "given");
  return named;
}

}  // namespace terrace
