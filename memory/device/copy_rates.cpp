#include <terrace/memory/device/copy_rates.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <exception>
#include <thread>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

class PlainMemoryCopies final : public PlainCopies {
 public:
  explicit PlainMemoryCopies(CopyBuffers device) : device_(device) {}

 private:
  void copy_all(const CopyRun& run, bool to_device) override {
    for (uint64_t i = 0; i < run.count; ++i) {
      const uint64_t offset = run.offset_of(i);
      if (to_device) {
        std::memcpy(device_.to_device.data() + offset, run.host.to_device.data() + offset, run.bytes);
      } else {
        std::memcpy(run.host.to_host.data() + offset, device_.to_host.data() + offset, run.bytes);
      }
    }
  }

  const CopyBuffers device_;
};

// The copies are few enough that queueing them takes a moment, and many enough that beginning and end are not
// most of the time.
constexpr uint64_t kLeastCopies = 4;
constexpr uint64_t kMostCopies = 4096;

uint64_t copies_of(uint64_t bytes, uint64_t moved_bytes) {
  return std::clamp(moved_bytes / bytes, kLeastCopies, kMostCopies);
}

double bytes_per_second(CopyWay& way, const CopyRun& run) {
  const uint64_t ns = std::max<uint64_t>(way.run_ns(run), 1);
  return static_cast<double>(run.moved_bytes()) / static_cast<double>(ns) * 1e9;
}

}  // namespace

StreamCopies::StreamCopies(Device& device, uint64_t buffer_bytes) : device_(device) {
  const std::vector<DeviceSlot> slots =
      device.create_slots(round_up(buffer_bytes, device.granularity_bytes()), 2, "copies");
  to_device_ = slots[0];
  to_host_ = slots[1];
}

uint64_t StreamCopies::run_ns(const CopyRun& run) {
  const bool to_device = run.directions != CopyDirections::to_host;
  const bool to_host = run.directions != CopyDirections::to_device;
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  Event done;
  done.begin(static_cast<uint32_t>(run.count) * (run.directions == CopyDirections::both ? 2 : 1));
  for (uint64_t i = 0; i < run.count; ++i) {
    const uint64_t offset = run.offset_of(i);
    if (to_device)
      device_.copy_to_device(to_device_, offset, run.host.to_device.data() + offset, run.bytes, nullptr,
                             done);
    if (to_host)
      device_.copy_to_host(run.host.to_host.data() + offset, to_host_, offset, run.bytes, nullptr, done);
  }
  done.wait();
  return clock.now_ns() - begun_ns;
}

uint64_t PlainCopies::run_ns(const CopyRun& run) {
  const SteadyClock clock;
  if (run.directions != CopyDirections::both) {
    const uint64_t begun_ns = clock.now_ns();
    copy_all(run, run.directions == CopyDirections::to_device);
    return clock.now_ns() - begun_ns;
  }
  std::barrier<> start(2);  // the time does not include making the thread
  uint64_t begun_ns[2] = {}, ended_ns[2] = {};
  std::exception_ptr failures[2];
  const auto copy = [&](bool to_device) {
    start.arrive_and_wait();
    begun_ns[to_device] = clock.now_ns();
    try {
      copy_all(run, to_device);
    } catch (...) {
      failures[to_device] = std::current_exception();
    }
    ended_ns[to_device] = clock.now_ns();
  };
  std::thread other([&] { copy(false); });
  copy(true);
  other.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  return std::max(ended_ns[0], ended_ns[1]) - std::min(begun_ns[0], begun_ns[1]);
}

std::unique_ptr<CopyWay> make_plain_memory_copies(CopyBuffers device) {
  return std::make_unique<PlainMemoryCopies>(device);
}

uint64_t CopyPlan::device_bytes(uint64_t granularity_bytes) const {
  return 4 * round_up(buffer_bytes, granularity_bytes);
}

std::vector<CopyMeasurement> measure_copies(const CopyPlan& plan, std::span<const HostMemoryKind> memories,
                                            CopyWay& streams, CopyWay& plain,
                                            FunctionRef<void(uint64_t)> begin_round) {
  std::vector<CopyMeasurement> results;
  for (const uint64_t bytes : plan.sizes) {
    TERRACE_ASSERT(bytes > 0 && bytes <= plan.buffer_bytes, "a copy is as long as a buffer at most");
    for (const HostMemoryKind& memory : memories) {
      for (const CopyDirections directions : kCopyDirections)
        results.push_back({bytes, copies_of(bytes, plan.moved_bytes), memory.name, directions, {}, {}});
    }
  }
  for (uint64_t round = 0; round <= plan.rounds; ++round) {
    begin_round(round);
    for (size_t i = 0; i < results.size(); ++i) {
      CopyMeasurement& result = results[i];
      const HostMemoryKind& memory = memories[i / kCopyDirections.size() % memories.size()];
      const CopyRun run{result.directions, memory.buffers, result.bytes, result.count};
      double speeds[2] = {};
      for (const bool second : {false, true}) {
        const bool by_streams = second != (round % 2 == 0);
        speeds[by_streams] = bytes_per_second(by_streams ? streams : plain, run);
      }
      if (round == 0) continue;
      result.plain_bytes_per_second.push_back(speeds[0]);
      result.stream_bytes_per_second.push_back(speeds[1]);
    }
  }
  return results;
}

}  // namespace terrace
