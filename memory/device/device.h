// Device: the memory of the accelerator, as the memory manager sees it. Back ends: SimulatedDevice,
// CudaDevice.
// It hands out physical slots and addresses and moves bytes; it must never know what the bytes mean, and it
// never exceeds its budget.
//
// A slot is physical memory. It is detached (at home: copies may read and write it) or attached (its memory
// lies under a flat address and operations compute with it), never both. Copies act on detached slots only; a
// slot with a copy in flight cannot be attached. Breaking either rule is an assertion.
//
// Threads: copies may be asked for from any thread; everything else belongs to the owner's thread, which may
// be another one after each call. A thread that asks for a copy of a slot and the thread that attaches it
// must agree on the order, as for any other shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/copy_observer.h>
#include <terrace/base/event.h>

namespace terrace {

namespace io {
class Engine;
struct EngineOptions;
}  // namespace io

enum class DeviceSlot : uint32_t {};
constexpr uint32_t index_of(DeviceSlot slot) {
  return static_cast<uint32_t>(slot);
}

// HostMemoryLock: memory of the host stays locked for a device while this lives (see
// Device::lock_host_memory()).
class HostMemoryLock {
 public:
  virtual ~HostMemoryLock() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  // Locks host memory once, so that copies of it are as fast as the device can make them. `memory` is whole
  // pages that stay mapped and are not given back to the system while the lock lives, and no copy of it is
  // under way when the lock goes. Returns null where a device has no use for a lock. A refusal is one warning
  // in the log and makes copies slower; it is never an error.
  virtual std::unique_ptr<HostMemoryLock> lock_host_memory(std::span<std::byte> memory) {
    (void)memory;
    return nullptr;
  }

  // create_slots() and allocate_work_memory() have taken used_bytes() and may take budget_bytes().
  // used_bytes() <= budget_bytes() always; a request that would break this throws Error(capacity) and takes
  // nothing.
  virtual uint64_t budget_bytes() const = 0;
  virtual uint64_t used_bytes() const = 0;
  virtual uint64_t peak_bytes() const = 0;

  // Sizes of slots, offsets of flat addresses and amounts of memory are counted in multiples of this.
  virtual uint64_t granularity_bytes() const = 0;

  // Reserves address space without memory. It counts nothing, and any access faults until a slot is attached
  // there. It is at least 2 MiB aligned and lives as long as the device. Throws Error(device) when the system
  // refuses.
  virtual std::byte* reserve_addresses(uint64_t bytes) = 0;

  // Makes `count` slots of `slot_bytes` (a multiple of granularity_bytes()), detached, for the life of the
  // device. Physical memory is there when this returns and, like fresh work memory, holds zeros, or NaN in
  // strict mode. `purpose` appears in messages.
  virtual std::vector<DeviceSlot> create_slots(uint64_t slot_bytes, uint32_t count,
                                               std::string_view purpose) = 0;
  virtual uint64_t slot_bytes(DeviceSlot slot) const = 0;

  // Allocates memory for a StackArena of activations and workspaces: permanent, and readable and writable by
  // operations at any time. It is `bytes` long and aligned to granularity_bytes() or, from 2 MiB on, to 2
  // MiB. Its cost is `bytes` rounded up to granularity_bytes().
  virtual std::span<std::byte> allocate_work_memory(uint64_t bytes) = 0;

  // Moves the slot's memory under [address, address + slot_bytes(slot)), which must lie in reserved
  // addresses, be a multiple of granularity_bytes() away from their beginning, and hold no other slot.
  virtual void attach(DeviceSlot slot, std::byte* address) = 0;
  // Moves the slot's memory back home; nothing may use the addresses any more. In strict mode they fault when
  // this returns, otherwise at some moment of the device's choice before anything else is attached there. The
  // bytes are kept.
  virtual void detach(DeviceSlot slot) = 0;
  virtual bool attached(DeviceSlot slot) const = 0;

  // Asynchronous copies run in order per direction. `after` is null or an event begun before; if it failed,
  // the copy is skipped and the failure passed on. `done` has been begun by the caller and is completed once.
  // The memory on the host and both events must live until `done` is done. A call blocks while the queue of
  // the direction is full, so never call these on the thread that completes an `after`. The observer of
  // `note` hears of a copy that moves bytes, before `done` is completed. A copy of no bytes is over as one of
  // some would be: not before the operations are that used the slot.
  virtual void copy_to_device(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes,
                              const Event* after, Event& done, const CopyNote& note = {}) = 0;
  virtual void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                            const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // These copy between host memory and a piece of work memory, in order with the copies of slots. Until
  // `done` is done, operations must not write to the source in work memory, nor touch the destination there.
  virtual void copy_to_work(std::byte* work, const std::byte* source, uint64_t bytes, const Event* after,
                            Event& done, const CopyNote& note = {}) = 0;
  virtual void copy_work_to_host(std::byte* destination, const std::byte* work, uint64_t bytes,
                                 const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // These copy between host memory and memory of the program that operations reach and no budget of the
  // device counts. They are in order with the copies of work memory, and the program's memory is to be left
  // alone as a piece of that is.
  virtual void copy_to_program(std::byte* program, const std::byte* source, uint64_t bytes,
                               const Event* after, Event& done, const CopyNote& note = {}) = 0;
  virtual void copy_program_to_host(std::byte* destination, const std::byte* program, uint64_t bytes,
                                    const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // Copies from a piece of work memory to a detached slot. The owner's thread asks for such copies; they run
  // in order among themselves, beside those of both directions, with `after` and `done` as these have them.
  // The bytes cross no link. Until `done` is done, operations must not write to the source.
  virtual void copy_work_to_slot(DeviceSlot slot, uint64_t offset, const std::byte* work, uint64_t bytes,
                                 const Event* after, Event& done) = 0;
  // Copies from a detached slot to a piece of work memory, in the same way. What operations that were asked
  // for before do with the destination comes first.
  virtual void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                                 const Event* after, Event& done) = 0;
  // Copies between two pieces of work memory that do not overlap, in the order of the operations that the
  // owner's thread asks for. The bytes cross no link.
  virtual void copy_work_in_order(std::byte* to, const std::byte* from, uint64_t bytes) = 0;
  // Zeroes bytes of the slot, attached or not, in the order of the operations and of later copies of the
  // slot; no copy of it is under way. Nothing crosses a link.
  virtual void zero_in_order(DeviceSlot slot, uint64_t offset, uint64_t bytes) = 0;
  // Copies to the slot in the same way, from memory of the program that operations reach. Operations that are
  // asked for later may write to the source.
  virtual void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) = 0;

  // Makes an engine that reads files registered with it into slots, past the host; its destinations come from
  // begin_fills(). The device outlives the engine. Throws Error(device) where the device has no such
  // reads.
  virtual std::unique_ptr<io::Engine> make_file_reader(const io::EngineOptions& options);
  // Announces that somebody else fills the detached slot, in so many parts, and returns the start of its
  // bytes for them and nothing else. Until the parts are over the slot cannot be attached. Requests of a file
  // reader wait for the operations that used the slot and for `after` (null, or as for a copy; if it failed,
  // they end with ECANCELED).
  virtual std::byte* begin_fills(DeviceSlot slot, uint32_t part_count, const Event* after) = 0;
  // Notes that one of these parts is over, or does not come after all. Any thread may call it.
  virtual void end_fill(DeviceSlot slot) noexcept = 0;

  // Where the bytes of a detached slot are, for somebody who reads them beside the copies: after a copy of
  // the slot that says that operations are over, and while another one of it, asked for before, is not.
  virtual const std::byte* home(DeviceSlot slot) const = 0;

  // Bytes copied so far, host to device and device to host. They include a copy as soon as its `done` is
  // done.
  virtual uint64_t h2d_bytes() const = 0;
  virtual uint64_t d2h_bytes() const = 0;
  // The time in which a copy was under way, by the host's clock; a copy that still waits for its `after` is
  // not.
  virtual uint64_t h2d_busy_ns() const = 0;
  virtual uint64_t d2h_busy_ns() const = 0;

  // Strict mode: misuse becomes visible. The owner detaches at the last release and poisons what it frees.
  virtual bool strict() const = 0;
  // Fills the slot with NaN (signalling in fp32 and bf16). Without strict mode it does nothing.
  virtual void poison(DeviceSlot slot) = 0;
};

}  // namespace terrace
