#include "support/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local uint64_t allocations = 0;
thread_local uint64_t allocated_bytes = 0;
std::atomic<uint64_t> all_allocations{0};

void* try_to_take(std::size_t bytes, std::size_t alignment) noexcept {
  ++allocations;
  all_allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes += bytes;
  void* memory = nullptr;
  if (bytes == 0) bytes = 1;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes);
  } else if (posix_memalign(&memory, alignment, bytes) != 0) {
    memory = nullptr;
  }
  return memory;
}

void* take(std::size_t bytes, std::size_t alignment) {
  void* const memory = try_to_take(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

uint64_t terrace::testing::allocations_of_this_thread() {
  return allocations;
}
uint64_t terrace::testing::allocations_of_all_threads() {
  return all_allocations.load(std::memory_order_relaxed);
}
uint64_t terrace::testing::allocated_bytes_of_this_thread() {
  return allocated_bytes;
}

void* operator new(std::size_t bytes) {
  return take(bytes, 1);
}
void* operator new[](std::size_t bytes) {
  return take(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return try_to_take(bytes, 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return try_to_take(bytes, 1);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
