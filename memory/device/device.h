// Device: the memory of the accelerator, as the memory manager sees it. Back ends: SimulatedDevice,
// CudaDevice.
// It hands out physical slots and addresses and moves bytes; it must never know what the bytes mean, and it
// never exceeds its budget.
//
// A slot is physical memory. It is detached (at home: copies may read and write it) or attached (its memory
// lies under a flat address and operations compute with it), never both. Copies act on detached slots only; a
// slot with a copy in flight cannot be attached. Breaking either rule is an assertion.
//
// Threads: copies may be asked for from any thread; everything else belongs to the owner's thread. Whoever
// asks for a copy of a slot and whoever attaches it must agree in time about who has it, as with any other
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/event.h>
#include <terrace/memory/device/copy_observer.h>

namespace terrace {

namespace io {
class Engine;
struct EngineOptions;
}  // namespace io

enum class DeviceSlot : uint32_t {};
constexpr uint32_t index_of(DeviceSlot slot) {
  return static_cast<uint32_t>(slot);
}

// What a device has made of memory of the host for as long as this lives: see Device::lock_host_memory().
class HostMemoryLock {
 public:
  virtual ~HostMemoryLock() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  // Whoever has the host's end of the copies calls this once for its memory, so that copies of it are as fast
  // as the device makes them. `memory` is whole pages that stay mapped and are not given back to the system
  // while what is returned lives, and no copy of it is under way when that goes. Null where a device has no
  // use for it. A refusal is one warning in the log and makes copies slower; it is never an error.
  virtual std::unique_ptr<HostMemoryLock> lock_host_memory(std::span<std::byte> memory) {
    (void)memory;
    return nullptr;
  }

  // What create_slots and allocate_work_memory have taken, and may take. used_bytes() <= budget_bytes()
  // always; a request that would break it throws Error(capacity) and takes nothing.
  virtual uint64_t budget_bytes() const = 0;
  virtual uint64_t used_bytes() const = 0;
  virtual uint64_t peak_bytes() const = 0;

  // Sizes of slots, offsets of flat addresses and amounts of memory are counted in multiples of this.
  virtual uint64_t granularity_bytes() const = 0;

  // Address space without memory: counts nothing, and any access faults until a slot is attached there. At
  // least 2 MiB aligned; lives as long as the device. Throws Error(device) when the system refuses.
  virtual std::byte* reserve_addresses(uint64_t bytes) = 0;

  // `count` slots of `slot_bytes` (a multiple of granularity_bytes()), detached, for the life of the device.
  // Physical memory is there when this returns, and holds zeros, or in strict mode NaN, like fresh work
  // memory. `purpose` appears in messages.
  virtual std::vector<DeviceSlot> create_slots(uint64_t slot_bytes, uint32_t count,
                                               std::string_view purpose) = 0;
  virtual uint64_t slot_bytes(DeviceSlot slot) const = 0;

  // For a StackArena of activations and workspaces: permanent, readable and writable by operations at any
  // time. As long as asked for, aligned to granularity_bytes() or, from 2 MiB on, to 2 MiB. Costs `bytes`
  // rounded up to granularity_bytes().
  virtual std::span<std::byte> allocate_work_memory(uint64_t bytes) = 0;

  // Moves the slot's memory under [address, address + slot_bytes(slot)), which must lie in reserved
  // addresses, be a multiple of granularity_bytes() away from their beginning, and hold no other slot.
  virtual void attach(DeviceSlot slot, std::byte* address) = 0;
  // Moves it back home; nothing may use the addresses any more. In strict mode they fault when this returns,
  // otherwise at some moment of the device's choice before anything else is attached there. The bytes are
  // kept.
  virtual void detach(DeviceSlot slot) = 0;
  virtual bool attached(DeviceSlot slot) const = 0;

  // Asynchronous copies, in order per direction; the fill is in order with the copies to the device. `after`
  // is null or an event begun before; if it failed the copy is skipped and the failure passed on. `done` has
  // been begun by the caller and is completed once. The memory on the host and both events must live until
  // `done` is done. Blocks while the queue of the direction is full, so never call these on the thread that
  // completes an `after`. Whoever `note` names is told of a copy that moves bytes, before `done` is
  // completed.
  virtual void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                              const Event* after, Event& done, const CopyNote& note = {}) = 0;
  virtual void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // The same between host memory and a piece of work memory, in order with the copies of slots. Until `done`
  // operations must not write what is copied away, nor touch what is copied in.
  virtual void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after,
                            Event& done, const CopyNote& note = {}) = 0;
  virtual void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes,
                                 const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // Between two pieces of work memory that do not overlap, in the order of the operations that the owner's
  // thread asks for; crosses no link.
  virtual void copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) = 0;
  // Zeros in the first `bytes` of the slot, in the order of the operations and of later copies of the slot,
  // attached or not; crosses no link.
  virtual void zero_in_order(DeviceSlot slot, uint64_t bytes) = 0;

  // Reads of files into slots past the host, where a device has them.
  // An engine for reads of files that were registered with it, to where begin_file_reads() says; the device
  // outlives it. Throws Error(device) where there are no such reads.
  virtual std::unique_ptr<io::Engine> make_file_reader(const io::EngineOptions& options);
  // The detached slot is going to be filled by so many requests of that engine, which wait for `after` (null,
  // or as of a copy; if it failed, with ECANCELED) and for the operations that used the slot. Returns where
  // its bytes begin, for these requests and nothing else. Until they are over the slot cannot be attached.
  virtual std::byte* begin_file_reads(DeviceSlot slot, uint32_t request_count, const Event* after);
  // One of them is over, or is not made after all. From any thread.
  virtual void end_file_read(DeviceSlot slot) noexcept;

  // Bytes copied so far, host to device and device to host. A copy is in them as soon as its `done` is done.
  virtual uint64_t h2d_bytes() const = 0;
  virtual uint64_t d2h_bytes() const = 0;
  // The time in which a copy was under way, by the host's clock; one that still waits for its `after` is not.
  virtual uint64_t h2d_busy_ns() const = 0;
  virtual uint64_t d2h_busy_ns() const = 0;

  // Strict mode: misuse becomes visible. The owner detaches at the last release and poisons what it frees.
  virtual bool strict() const = 0;
  // Fills the slot with NaN (signalling in fp32 and bf16). Without strict mode it does nothing.
  virtual void poison(DeviceSlot slot) = 0;
};

}  // namespace terrace
