// The emulator's device memory.
#include "device_memory.h"

#include <cstdlib>
#include <cstring>

#include <terrace/base/assert.h>

#include "emulator.h"

namespace terrace::testing {

std::string why_no_device() {
  return {};
}
// Aligned as cudaMalloc has it.
void* allocate_on_device(size_t bytes) {
  void* memory = nullptr;
  TERRACE_ASSERT(posix_memalign(&memory, 256, bytes == 0 ? 1 : bytes) == 0, "no memory for a test");
  return memory;
}
void free_on_device(void* memory) {
  std::free(memory);
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void copy_from_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void run_threads_backwards(bool backwards) {
  emulator::set_order(backwards ? emulator::Order::descending : emulator::Order::ascending);
}

}  // namespace terrace::testing
