#include <terrace/memory/device/strict_guard.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// The signal handler reads these entries; it has no other way to its data than through globals. An entry is
// used if `begin` is not 0, so `begin` is written last and cleared first.
struct Entry {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::atomic<const GuardDescriber*> describer = nullptr;
};
constinit std::array<Entry, StrictGuard::kMaxGuards> entries;

// These variables are written under `install_mutex`. The handler reads `previous_action`, which does not
// change while the handler is installed.
constinit std::mutex install_mutex;
constinit size_t guard_count = 0;
constinit bool installed = false;
struct sigaction previous_action;
// The thread whose stray access was reported last. It lives on only where the handler before has left by
// longjmp().
constinit std::atomic<pid_t> reporting_thread = 0;

void set_default_action() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &action, nullptr);
}

void report(uintptr_t address, const GuardDescriber& describer) {
  std::array<char, 2048> buffer;
  SignalSafeText text(buffer);
  text.text("terrace: error: stray access to ").hex(address).text(": ");
  describer.describe(reinterpret_cast<const std::byte*>(address), text);
  std::string_view rest = text.view();
  while (!rest.empty()) {
    const ssize_t written = write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest.remove_prefix(static_cast<size_t>(written));
  }
  // The newline is written apart, so that a description that fills the buffer ends with one as well.
  if (write(STDERR_FILENO, "\n", 1) != 1) return;
}

// Calls the handler that was there before as the kernel would have done: with the signals blocked that it
// asked for, and once only where it asked for that. Returns false where there was none.
bool call_previous(int signal, siginfo_t* info, void* context) {
  // A default or ignored signal has no handler, whatever the flags say.
  if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) return false;
  if ((previous_action.sa_flags & SA_RESETHAND) != 0) set_default_action();
  // A handler that leaves by longjmp() or raises the signal again counts on these.
  pthread_sigmask(SIG_BLOCK, &previous_action.sa_mask, nullptr);
  if ((previous_action.sa_flags & SA_NODEFER) != 0 && sigismember(&previous_action.sa_mask, signal) == 0) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else {
    previous_action.sa_handler(signal);
  }
  return true;
}

// The raised signal arrives when the handler returns, at the latest.
void end_by_default(int signal) {
  set_default_action();
  raise(signal);
}

// Called after a report. A handler before this one that returns has not ended the program, and may have made
// the address accessible; that is no reason to go on.
void end_after_report(int signal, siginfo_t* info, void* context) {
  reporting_thread.store(gettid(), std::memory_order_relaxed);
  if (call_previous(signal, info, context)) {
    end_by_default(signal);
  } else {
    set_default_action();  // the faulting instruction runs again and leaves a core that points at it
  }
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;
  if (!is_fault && reporting_thread.load(std::memory_order_relaxed) == gettid()) {
    // The handler before was called for a report, put this handler back and raised the signal again: it must
    // not be called forever.
    end_by_default(signal);
  } else if (call_previous(signal, info, context)) {
    return;
  } else if (is_fault) {
    set_default_action();  // the faulting instruction runs again and ends the program
  } else if (previous_action.sa_handler != SIG_IGN) {
    end_by_default(signal);  // a signal sent by kill() has no such instruction
  }
}

void handle_fault(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_fault = info->si_code > 0;  // a signal that a process sent has no address
  for (const Entry& entry : entries) {
    const uintptr_t begin = entry.begin.load(std::memory_order_acquire);
    if (!is_fault || begin == 0 || address < begin || address >= entry.end.load(std::memory_order_relaxed))
      continue;
    report(address, *entry.describer.load(std::memory_order_relaxed));
    end_after_report(signal, info, context);
    errno = saved_errno;
    return;
  }
  pass_on(signal, info, context);
  errno = saved_errno;
}

// The handler has a stack of its own, so that a description has room even if the stack is nearly used up.
class AlternateStack {
 public:
  AlternateStack() {
    stack_t current;
    if (sigaltstack(nullptr, &current) != 0 || (current.ss_flags & SS_DISABLE) == 0)
      return;  // the thread has one already
    const size_t bytes =
        std::max<size_t>(64 * 1024, 4 * static_cast<size_t>(std::max(sysconf(_SC_MINSIGSTKSZ), 0L)));
    memory_ = std::make_unique<char[]>(bytes);
    stack_t stack = {};
    stack.ss_sp = memory_.get();
    stack.ss_size = bytes;
    if (sigaltstack(&stack, nullptr) != 0) memory_.reset();  // the handler then runs on the ordinary stack
  }
  ~AlternateStack() {
    stack_t current;
    if (memory_ == nullptr || sigaltstack(nullptr, &current) != 0 || current.ss_sp != memory_.get()) return;
    current = {};
    current.ss_flags = SS_DISABLE;
    sigaltstack(&current, nullptr);
  }
  AlternateStack(const AlternateStack&) = delete;
  AlternateStack& operator=(const AlternateStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = handle_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, &previous_action) != 0) {
    throw Error(ErrorKind::device, {"cannot watch for stray accesses", "sigaction", system_reason(errno),
                                    "run without strict mode"});
  }
  installed = true;
}

// Leaves the handler in place if another one has been put over it, because that one may call it.
void remove_handler() {
  struct sigaction current;
  if (sigaction(SIGSEGV, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) == 0 || current.sa_sigaction != handle_fault) return;
  if (sigaction(SIGSEGV, &previous_action, nullptr) == 0) installed = false;
}

}  // namespace

SignalSafeText& SignalSafeText::text(std::string_view text) {
  for (const char c : text) {
    if (size_ == buffer_.size()) break;
    buffer_[size_++] = c;
  }
  return *this;
}

SignalSafeText& SignalSafeText::decimal(uint64_t value) {
  std::array<char, 20> digits;
  size_t first = digits.size();
  do {
    digits[--first] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return text({digits.data() + first, digits.size() - first});
}

SignalSafeText& SignalSafeText::hex(uint64_t value) {
  std::array<char, 16> digits;
  size_t first = digits.size();
  do {
    digits[--first] = "0123456789abcdef"[value % 16];
    value /= 16;
  } while (value != 0);
  return text("0x").text({digits.data() + first, digits.size() - first});
}

StrictGuard::StrictGuard(std::span<const std::byte> range, const GuardDescriber& describer) {
  TERRACE_ASSERT(!range.empty(), "an empty range cannot be guarded");
  thread_local AlternateStack alternate_stack;
  const std::lock_guard lock(install_mutex);
  const auto free =
      std::find_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.begin == 0; });
  if (free == entries.end())
    throw Error(ErrorKind::capacity,
                {"cannot guard the addresses of one more strict device", "this process",
                 "it guards " + std::to_string(kMaxGuards) + " ranges of them already",
                 "have fewer strict devices at the same time, or one that is not strict"});
  if (!installed) install_handler();
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  free->end.store(begin + range.size(), std::memory_order_relaxed);
  free->describer.store(&describer, std::memory_order_relaxed);
  free->begin.store(begin, std::memory_order_release);
  index_ = static_cast<size_t>(free - entries.begin());
  ++guard_count;
}

StrictGuard::~StrictGuard() {
  const std::lock_guard lock(install_mutex);
  entries[index_].begin.store(0, std::memory_order_release);
  if (--guard_count == 0) remove_handler();
}

}  // namespace terrace
