#include <terrace/memory/cuda/cuda_device.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/memory/cuda/internal/cuda_copy_engine.h>
#include <terrace/memory/cuda/internal/cuda_file_calls.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>
#include <terrace/memory/cuda/internal/cuda_unmapper.h>
#include <terrace/memory/device/copy_stream.h>
#include <terrace/memory/device/slot_table.h>

namespace terrace {

struct CudaDevice::Slot {
  Slot(const CudaGpu& gpu, std::byte* home, uint64_t bytes, const std::string& subject)
      : order(gpu, subject, false), piece(gpu, home, bytes, subject) {}

  CudaOrder order;
  CudaPiece piece;
};

// The members that copy and unmap come last, so they end before anything that they use goes.
struct CudaDevice::State {
  State(const CudaGpu& gpu, const CudaDeviceOptions& options)
      : table(options.budget_bytes, gpu.facts().granularity_bytes),
        compute(gpu, "the stream of operations (device tier)"),
        orders(gpu),
        unmapper(gpu),
        to_device_engine(gpu, CudaCopyEngine::Direction::to_device, options.host_piece_bytes, orders),
        to_host_engine(gpu, CudaCopyEngine::Direction::to_host, options.host_piece_bytes, orders),
        to_device({.engine = &to_device_engine}),
        to_host({.engine = &to_host_engine}) {}

  Slot& slot(DeviceSlot id) const {
    TERRACE_ASSERT(index_of(id) < slots.size(), "there is no device slot " + std::to_string(index_of(id)));
    return *slots[index_of(id)];
  }

  SlotTable table;
  std::vector<CudaAddresses> addresses;  // flat addresses, homes and work memory
  std::vector<CudaPiece> work_memory;
  std::vector<std::unique_ptr<Slot>> slots;  // by DeviceSlot
  CudaStream compute;
  CUstream operations = compute.get();  // or the stream of the program
  CudaOrderPool orders;
  CudaUnmapper unmapper;
  CudaCopyEngine to_device_engine;
  CudaCopyEngine to_host_engine;
  CopyStream to_device;
  CopyStream to_host;
  std::optional<CudaCopyEngine> within_engine;  // made with the first copy within the GPU
  std::optional<CopyStream> within;
  CudaFills fills;
};

std::unique_ptr<Device> make_cuda_device(const CudaGpu& gpu, CudaDeviceOptions options) {
  return std::make_unique<CudaDevice>(gpu, options);
}

CudaDevice::CudaDevice(const CudaGpu& gpu, CudaDeviceOptions options) : gpu_(gpu), options_(options) {
  if (!gpu.facts().virtual_memory) {
    throw Error(ErrorKind::device, {"cannot use the memory of", gpu.facts().name,
                                    "it or its driver has no virtual memory management (cuMemMap)",
                                    "use another GPU or a newer driver, or train on the simulated device"});
  }
  const CudaContext context(gpu);
  state_ = std::make_unique<State>(gpu, options_);
}

CudaDevice::~CudaDevice() {
  const CudaContextAtEnd context(gpu_);
  const CudaDriver& driver = gpu_.driver();
  gpu_.report(driver.stream_synchronize(state_->operations), "cuStreamSynchronize", "the device tier");
  for (uint32_t s = 0; s < state_->slots.size(); ++s) {
    const SlotEntry& entry = state_->table.at(DeviceSlot{s});
    if (!entry.is_attached()) continue;
    gpu_.report(driver.memory_unmap(cuda_pointer(entry.memory().data()), entry.bytes), "cuMemUnmap",
                state_->slots[s]->order.subject);
  }
  state_.reset();
}

CUstream_st* CudaDevice::compute_stream() const {
  return state_->operations;
}

void CudaDevice::use_stream(CUstream_st* stream) {
  if (stream == state_->operations) return;
  const CudaContext context(gpu_);
  const CudaDriver& driver = gpu_.driver();
  CudaOrder& order = state_->orders.take();
  try {
    driver.check(driver.event_record(order.event.get(), state_->operations), "cuEventRecord", order.subject);
    driver.check(driver.stream_wait_event(stream, order.event.get(), 0), "cuStreamWaitEvent", order.subject);
  } catch (...) {
    state_->orders.give_back(order);
    throw;
  }
  state_->orders.give_back(order);
  state_->operations = stream;
}

uint64_t CudaDevice::used_bytes() const {
  return state_->table.used_bytes();
}

uint64_t CudaDevice::granularity_bytes() const {
  return gpu_.facts().granularity_bytes;
}

std::byte* CudaDevice::reserve_addresses(uint64_t bytes) {
  const CudaContext context(gpu_);
  state_->addresses.emplace_back(gpu_, round_up(std::max<uint64_t>(bytes, 1), granularity_bytes()),
                                 "flat addresses (device tier)");
  state_->table.add_addresses(state_->addresses.back().memory());
  return state_->addresses.back().memory().data();
}

std::vector<DeviceSlot> CudaDevice::create_slots(uint64_t slot_bytes, uint32_t count,
                                                 std::string_view purpose) {
  const uint64_t bytes = state_->table.total_bytes(slot_bytes, count);
  if (count == 0) return {};
  state_->table.charge(bytes, purpose);
  std::vector<std::unique_ptr<Slot>> made;
  const std::string of_purpose = " of " + std::string(purpose) + " (device tier)";
  try {
    const CudaContext context(gpu_);
    CudaAddresses homes(gpu_, bytes, "homes of the slots" + of_purpose);
    try {
      for (uint32_t s = 0; s < count; ++s) {
        std::byte* const home = homes.memory().data() + s * slot_bytes;
        const std::string subject = "slot " + std::to_string(s) + of_purpose;
        made.push_back(std::make_unique<Slot>(gpu_, home, slot_bytes, subject));
        fill_fresh(home, slot_bytes, subject);
      }
      wait_for_operations("the slots" + of_purpose);
    } catch (...) {
      // The fills may be under way, and the slots must go before their addresses and the context.
      gpu_.report(gpu_.driver().stream_synchronize(state_->operations), "cuStreamSynchronize",
                  "the slots" + of_purpose);
      made.clear();
      throw;
    }
    state_->addresses.push_back(std::move(homes));
  } catch (...) {
    state_->table.refund(bytes);
    throw;
  }
  std::vector<DeviceSlot> result;
  for (uint32_t s = 0; s < count; ++s) {
    std::byte* const home = state_->addresses.back().memory().data() + s * slot_bytes;
    result.push_back(state_->table.add_slot(home, slot_bytes));
    state_->slots.push_back(std::move(made[s]));
  }
  return result;
}

std::unique_ptr<HostMemoryLock> CudaDevice::lock_host_memory(std::span<std::byte> memory) {
  if (memory.empty()) return nullptr;
  return std::make_unique<CudaPageLock>(gpu_, memory, options_.host_piece_bytes);
}

uint64_t CudaDevice::slot_bytes(DeviceSlot slot) const {
  return state_->table.at(slot).bytes;
}

std::span<std::byte> CudaDevice::allocate_work_memory(uint64_t bytes) {
  if (bytes == 0) return {};
  const std::string subject = "work memory (device tier)";
  const uint64_t mapped_bytes = round_up(bytes, granularity_bytes());
  state_->table.charge(mapped_bytes, "work memory");
  try {
    const CudaContext context(gpu_);
    CudaAddresses addresses(gpu_, mapped_bytes, subject);
    std::byte* const memory = addresses.memory().data();
    CudaPiece piece(gpu_, memory, mapped_bytes, subject);
    fill_fresh(memory, mapped_bytes, subject);
    wait_for_operations(subject);
    state_->addresses.push_back(std::move(addresses));
    state_->work_memory.push_back(std::move(piece));
  } catch (...) {
    state_->table.refund(mapped_bytes);
    throw;
  }
  const std::span<std::byte> memory = state_->addresses.back().memory();
  state_->table.add_work_memory(memory);
  return memory.first(bytes);
}

void CudaDevice::fill_fresh(std::byte* memory, uint64_t bytes, const std::string& subject) {
  const CudaDriver& driver = gpu_.driver();
  const CUstream stream = state_->operations;
  if (options_.strict) {
    driver.check(driver.fill_words(cuda_pointer(memory), kPoison, bytes / sizeof(kPoison), stream),
                 "cuMemsetD32Async", subject);
  } else {
    driver.check(driver.fill_bytes(cuda_pointer(memory), 0, bytes, stream), "cuMemsetD8Async", subject);
  }
}

void CudaDevice::wait_for_operations(const std::string& subject) {
  const CudaContext context(gpu_);
  gpu_.driver().check(gpu_.driver().stream_synchronize(state_->operations), "cuStreamSynchronize", subject);
}

void CudaDevice::attach(DeviceSlot id, std::byte* address) {
  state_->table.require_attachable(id, address);
  const Slot& slot = state_->slot(id);
  const uint64_t bytes = state_->table.at(id).bytes;
  state_->unmapper.wait_for(address, bytes);
  const CudaContext context(gpu_);
  cuda_map(gpu_, address, bytes, slot.piece.handle(), slot.order.subject);
  state_->table.note_attached(id, address);
}

void CudaDevice::detach(DeviceSlot id) {
  state_->table.require_attached(id);
  const Slot& slot = state_->slot(id);
  const SlotEntry& entry = state_->table.at(id);
  std::byte* const address = entry.memory().data();
  {
    const CudaContext context(gpu_);
    gpu_.driver().check(gpu_.driver().event_record(slot.order.event.get(), state_->operations),
                        "cuEventRecord", slot.order.subject);
  }
  state_->unmapper.add({address, entry.bytes, slot.order.event.get(), &slot.order.subject});
  state_->table.note_detached(id);
  if (options_.strict) state_->unmapper.wait_for(address, entry.bytes);
}

bool CudaDevice::attached(DeviceSlot slot) const {
  return state_->table.at(slot).is_attached();
}

void CudaDevice::enqueue_slot_copy(CopyStream& stream, DeviceSlot slot, CopyTask task) {
  task.for_engine = &state_->slot(slot).order;
  stream.enqueue(task);
}

void CudaDevice::copy_to_device(DeviceSlot id, uint64_t offset, const std::byte* source, uint64_t bytes,
                                const Event* after, Event& done, const CopyNote& note) {
  enqueue_slot_copy(state_->to_device, id,
                    state_->table.to_slot(id, offset, source, bytes, after, done, note));
}

void CudaDevice::copy_to_host(std::byte* destination, DeviceSlot id, uint64_t offset, uint64_t bytes,
                              const Event* after, Event& done, const CopyNote& note) {
  enqueue_slot_copy(state_->to_host, id,
                    state_->table.from_slot(destination, id, offset, bytes, after, done, note));
}

void CudaDevice::enqueue_work_copy(CopyStream& stream, CopyTask task) {
  CudaOrder* order = nullptr;
  try {
    const CudaContext context(gpu_);
    order = &state_->orders.take();
    gpu_.driver().check(gpu_.driver().event_record(order->event.get(), state_->operations), "cuEventRecord",
                        order->subject);
  } catch (...) {
    // The caller may be any thread, so the failure is told where the copy is waited for.
    if (order != nullptr) state_->orders.give_back(*order);
    task.done->complete_one(std::current_exception());
    return;
  }
  task.for_engine = order;
  stream.enqueue(task);
}

void CudaDevice::copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after,
                              Event& done, const CopyNote& note) {
  enqueue_work_copy(state_->to_device, state_->table.to_work(work, source, bytes, after, done, note));
}

void CudaDevice::copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes,
                                   const Event* after, Event& done, const CopyNote& note) {
  enqueue_work_copy(state_->to_host, state_->table.from_work(destination, work, bytes, after, done, note));
}

void CudaDevice::copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes,
                                 const Event* after, Event& done, const CopyNote& note) {
  enqueue_work_copy(state_->to_device, SlotTable::without_slot(program, source, bytes, after, done, note));
}

void CudaDevice::copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                                      const Event* after, Event& done, const CopyNote& note) {
  enqueue_work_copy(state_->to_host, SlotTable::without_slot(destination, program, bytes, after, done, note));
}

CopyStream& CudaDevice::within() {
  State& state = *state_;
  if (!state.within) {
    const CudaContext context(gpu_);
    state.within_engine.emplace(gpu_, CudaCopyEngine::Direction::within, options_.host_piece_bytes,
                                state.orders);
    state.within.emplace(CopyStreamOptions{.engine = &*state.within_engine});
  }
  return *state.within;
}

// What operations have written so far is there when the copy begins, and so are copies to work memory that
// `after` stands for.
void CudaDevice::copy_work_to_slot(DeviceSlot id, uint64_t offset, const std::byte* work, uint64_t bytes,
                                   const Event* after, Event& done) {
  enqueue_work_copy(within(), state_->table.within(id, offset, work, bytes, after, done));
}

void CudaDevice::copy_slot_to_work(std::byte* work, DeviceSlot id, uint64_t offset, uint64_t bytes,
                                   const Event* after, Event& done) {
  enqueue_work_copy(within(), state_->table.out_within(work, id, offset, bytes, after, done));
}

void CudaDevice::copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) {
  state_->table.require_work_memory(to, bytes);
  state_->table.require_work_memory(from, bytes);
  if (bytes == 0) return;
  const CudaContext context(gpu_);
  const std::string subject = "work memory (device tier)";
  gpu_.driver().check(
      gpu_.driver().copy_on_device(cuda_pointer(to), cuda_pointer(from), bytes, state_->operations),
      "cuMemcpyDtoDAsync", subject);
}

void CudaDevice::zero_in_order(DeviceSlot id, uint64_t offset, uint64_t bytes) {
  const std::span<std::byte> memory = state_->table.idle_memory(id, offset, bytes, "fill");
  if (bytes == 0) return;
  const CudaContext context(gpu_);
  gpu_.driver().check(gpu_.driver().fill_bytes(cuda_pointer(memory.data()), 0, bytes, state_->operations),
                      "cuMemsetD8Async", state_->slot(id).order.subject);
  order_copies_behind(id);
}

void CudaDevice::fill_in_order(DeviceSlot id, uint64_t offset, const std::byte* source, uint64_t bytes) {
  const std::span<std::byte> memory = state_->table.idle_memory(id, offset, bytes, "fill");
  if (bytes == 0) return;
  const CudaContext context(gpu_);
  gpu_.driver().check(gpu_.driver().copy_on_device(cuda_pointer(memory.data()), cuda_pointer(source), bytes,
                                                   state_->operations),
                      "cuMemcpyDtoDAsync", state_->slot(id).order.subject);
  order_copies_behind(id);
}

// They wait for the slot's event; detach() records it for a slot that is attached.
void CudaDevice::order_copies_behind(DeviceSlot id) {
  if (attached(id)) return;
  const CudaOrder& order = state_->slot(id).order;
  gpu_.driver().check(gpu_.driver().event_record(order.event.get(), state_->operations), "cuEventRecord",
                      order.subject);
}

void CudaDevice::poison(DeviceSlot id) {
  if (!options_.strict) return;
  const std::span<std::byte> memory = state_->table.idle_memory(id, 0, slot_bytes(id), "poison");
  const CudaContext context(gpu_);
  const std::string& subject = state_->slot(id).order.subject;
  fill_fresh(memory.data(), memory.size(), subject);
  wait_for_operations(subject);
}

std::unique_ptr<io::Engine> CudaDevice::make_file_reader(const io::EngineOptions& options) {
  io::EngineOptions threads = options;
  threads.kind = io::EngineKind::threads;
  auto calls = std::make_unique<CudaFileCalls>(gpu_, gpu_.cu_file(), state_->fills);
  return io::make_engine_over(
      std::make_unique<io::ThreadTransport>(threads.queue_depth, threads.thread_count, std::move(calls)),
      threads);
}

std::byte* CudaDevice::begin_fills(DeviceSlot id, uint32_t part_count, const Event* after) {
  std::byte* const home = state_->table.begin_fills(id, part_count);
  state_->fills.set({home, slot_bytes(id), after, &state_->slot(id).order});
  return home;
}

void CudaDevice::end_fill(DeviceSlot id) noexcept {
  state_->table.end_fill(id);
}

const std::byte* CudaDevice::home(DeviceSlot slot) const {
  return state_->table.at(slot).home;
}

uint64_t CudaDevice::h2d_bytes() const {
  return state_->to_device.copied_bytes();
}

uint64_t CudaDevice::d2h_bytes() const {
  return state_->to_host.copied_bytes();
}

uint64_t CudaDevice::h2d_busy_ns() const {
  return state_->to_device.busy_ns();
}

uint64_t CudaDevice::d2h_busy_ns() const {
  return state_->to_host.busy_ns();
}

}  // namespace terrace
