// Fiber: a function on a stack of its own, which gives the processor back in the middle and goes on from
// there. The emulator has one for every thread of a block and changes it at every barrier, so a change must
// cost little: here it is a dozen instructions. That of ucontext.h asks the kernel for the mask of signals,
// twice, and was most of what the tests of the kernels took; it remains for processors whose registers this
// file does not know.
//
// A fiber may be entered from another thread of the system than the one that entered it before, but not from
// two at once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace terrace::emulator {

class Fiber {
 public:
  // The body begins at the first enter(), and must never return.
  explicit Fiber(void (*body)());
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it leaves.
  void enter();
  // Within the body: back to whoever entered, until the next enter().
  void leave();

 private:
#if defined(__x86_64__)
  using Place = void*;  // the pointer to a stack, on which its registers are
#else
  using Place = ucontext_t;
#endif
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  static void begin();
  static void change(Place& from, Place& to);
  void arrived(void* sanitizer_stack);

  void (*const body_)();
  const std::unique_ptr<void, Free> stack_;
  Place inside_, outside_;
  // What the address sanitizer wants to know of the stacks.
  void* sanitizer_stack_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_stack_bytes_ = 0;
};

}  // namespace terrace::emulator
