// CudaDevice: the memory of an NVIDIA GPU as a Device.
//
// Two mappings of a slot. Physical memory is made once per slot (cuMemCreate) and has a permanent mapping,
// its home, by which all copies go; attaching maps the same memory a second time at the flat address,
// detaching unmaps it there. The GPU does not order accesses by two addresses of one memory within a kernel;
// here they are never in one: operations use the flat address, copies the home, and stream order or an event
// lies between the two.
//
// Order. Operations belong on compute_stream(). Detaching records an event there, and a later copy of the
// slot waits for it on the GPU: the host waits for nothing. A copy of work memory waits for the operations
// that compute_stream() held when the copy was asked for. The functions of Device that act in the order of
// the operations enqueue on compute_stream() and do not wait.
//
// Unmapping waits for that event too, on a thread of its own and in batches: cuMemUnmap has no stream order,
// and its cost is not documented. So after detach() the old addresses stay readable for a moment (strict
// mode: detach() waits until they fault). attach() waits for a pending unmapping of its addresses only.
//
// Copies: one GPU stream per direction and one for copies within the GPU, which comes with the first of them.
// Each has a CopyStream, which waits for `after` on a thread of its own; several copies are on the GPU's
// stream at once. Busy times are by the host's clock.
//
// Reads of files go by cuFile, on threads of their own, into homes, like copies.
//
// The budget counts physical memory in whole granules (usually 2 MiB). The context of the process, which
// takes some hundred MiB, is not in it: a budget has to leave room for that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/cuda/cuda_page_lock.h>
#include <terrace/memory/device/device.h>

struct CUstream_st;

namespace terrace {

class CopyStream;
struct CopyTask;

struct CudaDeviceOptions {
  uint64_t budget_bytes = 0;
  // Fresh and poisoned memory holds NaN, and addresses fault as soon as their slot is detached.
  bool strict = false;
  uint64_t host_piece_bytes = kCudaHostPieceBytes;  // the pieces of CudaPageLock
};

// Makes a CudaDevice, for programs that are also built without CUDA.
std::unique_ptr<Device> make_cuda_device(const CudaGpu& gpu, CudaDeviceOptions options);

class CudaDevice final : public Device {
 public:
  // `gpu` must outlive the device. Throws Error(device) for a GPU without virtual memory management.
  CudaDevice(const CudaGpu& gpu, CudaDeviceOptions options);
  // Finishes the copies that were asked for; the events they wait for must still come.
  ~CudaDevice() override;

  // The stream on which operations run in order: one of the device's own, until use_stream().
  CUstream_st* compute_stream() const;
  // Operations run on a stream of the program from now on, behind those of the stream before. It is one of
  // the GPU's primary context, null for the default stream, and has to live until another one is used or the
  // device has ended. Throws Error(device).
  void use_stream(CUstream_st* stream);
  // Waits until everything on compute_stream() is over. Throws Error(device) naming `subject`.
  void wait_for_operations(const std::string& subject);

  std::unique_ptr<HostMemoryLock> lock_host_memory(std::span<std::byte> memory) override;
  uint64_t budget_bytes() const override { return options_.budget_bytes; }
  uint64_t used_bytes() const override;
  uint64_t peak_bytes() const override { return used_bytes(); }  // nothing is ever given back
  uint64_t granularity_bytes() const override;
  std::byte* reserve_addresses(uint64_t bytes) override;
  std::vector<DeviceSlot> create_slots(uint64_t slot_bytes, uint32_t count,
                                       std::string_view purpose) override;
  uint64_t slot_bytes(DeviceSlot slot) const override;
  std::span<std::byte> allocate_work_memory(uint64_t bytes) override;
  void attach(DeviceSlot slot, std::byte* address) override;
  void detach(DeviceSlot slot) override;
  bool attached(DeviceSlot slot) const override;
  void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                      const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                    const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after, Event& done,
                    const CopyNote& note = {}) override;
  void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes, const Event* after,
                         Event& done, const CopyNote& note = {}) override;
  void copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes, const Event* after,
                       Event& done, const CopyNote& note = {}) override;
  void copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note = {}) override;
  void copy_work_to_slot(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                         const Event* after, Event& done) override;
  void copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) override;
  void zero_in_order(DeviceSlot slot, uint64_t offset, uint64_t bytes) override;
  void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) override;
  // The engine reads by cuFile, on options.thread_count threads; slots are not registered with cuFile.
  std::unique_ptr<io::Engine> make_file_reader(const io::EngineOptions& options) override;
  std::byte* begin_fills(DeviceSlot slot, uint32_t part_count, const Event* after) override;
  void end_fill(DeviceSlot slot) noexcept override;
  const std::byte* home(DeviceSlot slot) const override;
  uint64_t h2d_bytes() const override;
  uint64_t d2h_bytes() const override;
  uint64_t h2d_busy_ns() const override;
  uint64_t d2h_busy_ns() const override;
  bool strict() const override { return options_.strict; }
  void poison(DeviceSlot slot) override;

 private:
  struct Slot;
  struct State;

  // Fills memory with zeros, or NaN in strict mode, without waiting.
  void fill_fresh(std::byte* memory, uint64_t bytes, const std::string& subject);
  // Puts a copy of a slot behind the operations that its last detach() waited for.
  void enqueue_slot_copy(CopyStream& stream, DeviceSlot slot, CopyTask task);
  // Lets later copies of the slot wait for what was just asked for in the order of the operations.
  void order_copies_behind(DeviceSlot slot);
  CopyStream& within();
  // Puts a copy of work memory behind the operations so far.
  void enqueue_work_copy(CopyStream& stream, CopyTask task);

  const CudaGpu& gpu_;
  const CudaDeviceOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
