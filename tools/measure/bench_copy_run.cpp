#include "measure/bench_copy.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/cuda/cuda_plain_copies.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/host_arena.h>

#include "measure/measuring.h"

namespace terrace {
namespace {

// DeviceSide: the device, and memory on it for the plain copies.
struct DeviceSide {
  explicit DeviceSide(const CopyBenchPlan& plan) {
    const uint64_t bytes = plan.copies.buffer_bytes;
    if (plan.gpu != nullptr) {
      const uint64_t granularity_bytes = std::max<uint64_t>(plan.gpu->facts().granularity_bytes, 1);
      device = make_cuda_device(*plan.gpu, {.budget_bytes = plan.copies.device_bytes(granularity_bytes)});
    } else {
      device = std::make_unique<SimulatedDevice>(
          SimulatedDeviceOptions{.budget_bytes = plan.copies.device_bytes(page_bytes())});
    }
    streams = std::make_unique<StreamCopies>(*device, bytes);
    const CopyBuffers work{device->allocate_work_memory(bytes), device->allocate_work_memory(bytes)};
    plain = plan.gpu != nullptr ? make_plain_cuda_copies(*plan.gpu, work) : make_plain_memory_copies(work);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<CopyWay> streams, plain;
};

// HostSide: both buffers in one kind of host memory, with content.
class HostSide {
 public:
  HostSide(uint64_t buffer_bytes, Log& log)
      : arena_({.budget_bytes = 2 * buffer_bytes, .lock_pages = false}, log) {
    std::memset(arena_.memory().data(), 1, arena_.memory().size());
  }
  std::span<std::byte> memory() { return arena_.memory(); }
  CopyBuffers buffers() {
    const size_t half = memory().size() / 2;
    return {memory().first(half), memory().subspan(half)};
  }

 private:
  HostArena arena_;
};

}  // namespace

uint64_t CopyBenchPlan::host_bytes() const {
  const uint64_t one_kind = 2 * copies.buffer_bytes;
  return gpu != nullptr ? 2 * one_kind : one_kind + copies.device_bytes(page_bytes());
}

CopyBenchResult measure_copies(const CopyBenchPlan& plan, Console& console) {
  console.progress(fmt::format("touching {} of memory", format_bytes(plan.host_bytes())));
  CopyBenchResult result;
  result.device = plan.gpu != nullptr ? plan.gpu->facts().name : "simulated";
  HostSide pageable(plan.copies.buffer_bytes, console);
  std::vector<HostMemoryKind> memories;
  std::optional<HostSide> locked;
  std::optional<CudaPageLock> lock;  // unlocks before its memory goes
  if (plan.gpu != nullptr) {
    locked.emplace(plan.copies.buffer_bytes, console);
    lock.emplace(*plan.gpu, locked->memory());
    result.page_locked = lock->locked();
    if (result.page_locked) memories.push_back({"page-locked", locked->buffers()});
    memories.push_back({"pageable", pageable.buffers()});
  } else {
    memories.push_back({"host", pageable.buffers()});
  }
  const DeviceSide device(plan);
  result.measurements =
      measure_copies(plan.copies, memories, *device.streams, *device.plain,
                     [&](uint64_t round) { show_round(round, plan.copies.rounds, console); });
  console.end_progress();
  return result;
}

}  // namespace terrace
