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

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // The faulting instruction runs again after this and ends the program. A signal sent by kill() has no
    // such instruction, so it is raised again.
    set_default_action();
    if (info->si_code <= 0) raise(signal);
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
    set_default_action();  // the faulting instruction runs again and leaves a core that points at it
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
  TERRACE_ASSERT(free != entries.end(), "more than " + std::to_string(kMaxGuards) + " guards");
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
