// StrictGuard: turns a stray access to guarded addresses into a message that names the bytes touched. In
// strict mode chunks that nobody leases are inaccessible, so a touch of them is a SIGSEGV, and the guard says
// whose bytes they are. It must never change anything else: the handler that was there before gets faults
// elsewhere, and guarded ones after the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// Appends text to a buffer with nothing but stores, so that it can be used in a signal handler. Text that
// does not fit is cut off.
class SignalSafeText {
 public:
  explicit SignalSafeText(std::span<char> buffer) : buffer_(buffer) {}
  SignalSafeText& text(std::string_view text);
  SignalSafeText& decimal(uint64_t value);
  SignalSafeText& hex(uint64_t value);  // with 0x
  std::string_view view() const { return {buffer_.data(), size_}; }
  size_t size() const { return size_; }

 private:
  std::span<char> buffer_;
  size_t size_ = 0;
};

// GuardDescriber: describes a guarded address.
class GuardDescriber {
 public:
  virtual ~GuardDescriber() = default;
  // Writes the tensor, chunk, state and last lease at `address` as one or more lines into `out`. It runs in a
  // signal handler, on any thread, in the middle of anything: it may only read plain memory that is kept up
  // to date, and must neither allocate nor lock nor call the system.
  virtual void describe(const std::byte* address, SignalSafeText& out) const noexcept = 0;
};

// While it lives, a fault at an address of `range` on any thread prints
//   terrace: error: stray access to 0x...: <description>
// to stderr, calls the handler of SIGSEGV that was there before the first guard, and ends the program by the
// default action. So Python's faulthandler, enabled before, adds Python's traceback. The handler before gets
// what the kernel would give it (siginfo, blocked signals); it may raise the signal again, and it alone may
// go on, by longjmp(): when it returns, the program ends. A handler that is put over the guard's later comes
// first; if it raises the signal again, the address is lost and no line is printed.
//
// The first guard installs the handler, the last one restores the previous handler. The handler runs on the
// alternate stack of the faulting thread if it has one, and so does the one before; the thread that makes a
// guard gets one. Construct and destroy under no lock of your own; more than kMaxGuards at once are an
// Error(capacity).
class StrictGuard {
 public:
  static constexpr size_t kMaxGuards = 256;

  // `describer` and the memory it reads must outlive the guard.
  StrictGuard(std::span<const std::byte> range, const GuardDescriber& describer);
  ~StrictGuard();
  StrictGuard(const StrictGuard&) = delete;
  StrictGuard& operator=(const StrictGuard&) = delete;

 private:
  size_t index_;  // in the table of the handler
};

}  // namespace terrace
