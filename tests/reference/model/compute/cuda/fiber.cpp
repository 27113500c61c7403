#include "fiber.h"

#include <cstdint>
#include <string>

#include <terrace/base/assert.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// terrace_change_fiber(void** from, void* to): the registers that a function has to keep go to this stack,
// whose pointer goes to *from, and come from the other one.
asm(R"(
  .text
  .type terrace_change_fiber, @function
terrace_change_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size terrace_change_fiber, . - terrace_change_fiber
)");
extern "C" void terrace_change_fiber(void** from, void* to);
#endif

namespace terrace::emulator {
namespace {

// Enough for the frames of a kernel under the address sanitizer; only pages that are used exist.
constexpr size_t kStackBytes = 256 * 1024;

// The fiber whose body begins. Those of a kernel are entered by one thread at a time.
Fiber* beginning = nullptr;

}  // namespace

#if defined(__x86_64__)
Fiber::Fiber(void (*body)()) : body_(body), stack_(std::malloc(kStackBytes)) {
  TERRACE_ASSERT(stack_ != nullptr, "no memory for a fiber");
  const uintptr_t end = (reinterpret_cast<uintptr_t>(stack_.get()) + kStackBytes) & ~uintptr_t{15};
  auto* const top = reinterpret_cast<uintptr_t*>(end) - 8;
  for (int i = 0; i < 8; ++i) top[i] = 0;  // registers, and no caller of begin()
  top[6] = reinterpret_cast<uintptr_t>(&Fiber::begin);
  inside_ = top;
}

void Fiber::change(Place& from, Place& to) {
  terrace_change_fiber(&from, to);
}
#else
Fiber::Fiber(void (*body)()) : body_(body), stack_(std::malloc(kStackBytes)) {
  TERRACE_ASSERT(stack_ != nullptr && getcontext(&inside_) == 0, "no memory for a fiber");
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  makecontext(&inside_, &Fiber::begin, 0);
}

void Fiber::change(Place& from, Place& to) {
  swapcontext(&from, &to);
}
#endif

void Fiber::begin() {
  Fiber& mine = *beginning;
  mine.arrived(nullptr);
  mine.body_();
}

void Fiber::enter() {
  beginning = this;
#if defined(__SANITIZE_ADDRESS__)
  void* sanitizer_stack = nullptr;
  __sanitizer_start_switch_fiber(&sanitizer_stack, stack_.get(), kStackBytes);
#endif
  change(outside_, inside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_stack, nullptr, nullptr);
#endif
}

void Fiber::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sanitizer_stack_, outer_stack_, outer_stack_bytes_);
#endif
  change(inside_, outside_);
  arrived(sanitizer_stack_);
}

void Fiber::arrived(void* sanitizer_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_stack, &outer_stack_, &outer_stack_bytes_);
#else
  static_cast<void>(sanitizer_stack);
#endif
}

}  // namespace terrace::emulator
