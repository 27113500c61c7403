// Memory of another process of this host, as the kernel reads it (process_vm_readv): in one copy, and without
// help of that process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace terrace {

struct MemoryPiece {
  uint64_t address = 0;  // in the other process
  std::span<std::byte> into;
};

// Copies the pieces, of which there are at most four, one after the other. Returns the number of bytes that
// were copied, or an errno, negated. Throws nothing.
using ReadProcess = std::function<int64_t(uint32_t process, std::span<const MemoryPiece> pieces)>;

// The kernel's. Thread-safe.
int64_t read_process_memory(uint32_t process, std::span<const MemoryPiece> pieces);

// Lets every process of this user read this one's memory, where the kernel asks for that (Yama).
void let_processes_read();

// This host, as the kernel that runs and the name of the host make it, and the namespace of processes of this
// one. Where one of them differs, ranks do not read each other: they are on different hosts, or a process has
// no number here that the other could use. 0: the kernel does not say.
uint64_t host_hash();
uint64_t process_namespace();

}  // namespace terrace
