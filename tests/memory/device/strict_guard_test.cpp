#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <terrace/memory/device/strict_guard.h>
#include <terrace/memory/host/pages.h>

#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::strict_guard_test {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

class FixedDescriber final : public GuardDescriber {
 public:
  explicit FixedDescriber(std::string_view text, const std::byte* base = nullptr)
      : text_(text), base_(base) {}
  void describe(const std::byte* address, SignalSafeText& out) const noexcept override {
    out.text(text_);
    if (base_ != nullptr) out.text(" at byte ").decimal(static_cast<uint64_t>(address - base_));
  }

 private:
  std::string_view text_;
  const std::byte* base_;
};

void touch(const std::byte* address) {
  (void)*static_cast<const volatile std::byte*>(address);
}

TEST(SignalSafeText, WritesNumbersAndCutsOffWhatDoesNotFit) {
  std::array<char, 64> buffer;
  SignalSafeText text(buffer);
  text.text("n=")
      .decimal(0)
      .text(" ")
      .decimal(18446744073709551615u)
      .text(" ")
      .hex(0)
      .text(" ")
      .hex(0xdeadbeef);
  EXPECT_EQ(text.view(), "n=0 18446744073709551615 0x0 0xdeadbeef");
  std::array<char, 4> small;
  SignalSafeText cut(small);
  cut.text("abc").decimal(123);
  EXPECT_EQ(cut.view(), "abc1");
  EXPECT_EQ(cut.size(), 4u);
}

TEST(StrictGuard, RefusesMoreRangesThanItHasRoomFor) {
  const FixedDescriber describer("x");
  std::array<std::byte, StrictGuard::kMaxGuards + 1> memory{};
  std::vector<std::unique_ptr<StrictGuard>> guards;
  const auto add = [&] {
    guards.push_back(std::make_unique<StrictGuard>(std::span(memory).subspan(guards.size(), 1), describer));
  };
  for (size_t g = 0; g < StrictGuard::kMaxGuards; ++g) add();
  testing::expect_error(ErrorKind::capacity, {"strict", "256"}, add);
  guards.pop_back();
  add();
}

TEST(StrictGuardDeathTest, NamesWhatWasTouched) {
  const PageMapping range = PageMapping::inaccessible(4 * page_bytes());
  const std::byte* const base = range.memory().data();
  const FixedDescriber describer("tensor h.3.attn.weight", base);
  EXPECT_EXIT(
      {
        const StrictGuard guard(range.memory(), describer);
        touch(base + 77);
      },
      KilledBySignal(SIGSEGV),
      "terrace: error: stray access to 0x[0-9a-f]+: tensor h.3.attn.weight at byte 77");
}

TEST(StrictGuardDeathTest, ChoosesTheRangeOfTheAddress) {
  const PageMapping first = PageMapping::inaccessible(page_bytes());
  const PageMapping second = PageMapping::inaccessible(page_bytes());
  const FixedDescriber one("the first range"), other("the second range");
  EXPECT_EXIT(
      {
        const StrictGuard guard_one(first.memory(), one);
        const StrictGuard guard_other(second.memory(), other);
        touch(second.memory().data() + page_bytes() - 1);
      },
      KilledBySignal(SIGSEGV), "the second range");
}

TEST(StrictGuardDeathTest, SpeaksForOtherThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const PageMapping range = PageMapping::inaccessible(page_bytes());
        const FixedDescriber describer("a chunk nobody leased");
        const StrictGuard guard(range.memory(), describer);
        std::thread([&] { touch(range.memory().data()); }).join();
      },
      KilledBySignal(SIGSEGV), "a chunk nobody leased");
}

TEST(StrictGuardDeathTest, CutsALongDescriptionAndStillEndsTheLine) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const std::string long_text(5000, 'x');
  const FixedDescriber describer(long_text);
  EXPECT_EXIT(
      {
        const StrictGuard guard(range.memory(), describer);
        touch(range.memory().data());
      },
      KilledBySignal(SIGSEGV), "stray access to 0x[0-9a-f]+: x{1000}");
}

const std::byte* elsewhere = nullptr;

void previous_handler(int, siginfo_t* info, void*) {
  _exit(info->si_addr == elsewhere ? 42 : 43);  // reached for the address that nobody guards
}

void previous_plain_handler(int) {
  _exit(44);
}

TEST(StrictGuardDeathTest, PassesOtherFaultsToTheHandlerBefore) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const PageMapping other = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("guarded");
  elsewhere = other.memory().data();
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = previous_handler;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        const StrictGuard guard(range.memory(), describer);
        touch(elsewhere);
      },
      ExitedWithCode(42), "");
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_handler = previous_plain_handler;
        sigaction(SIGSEGV, &action, nullptr);
        const StrictGuard guard(range.memory(), describer);
        touch(elsewhere);
      },
      ExitedWithCode(44), "");
}

void install(struct sigaction action) {
  sigaction(SIGSEGV, &action, nullptr);
}

void say(std::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
}

bool is_blocked(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

struct sigaction plain_action(void (*handler)(int), int flags = 0) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  return action;
}

struct sigaction info_action(void (*handler)(int, siginfo_t*, void*), int flags = 0) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  return action;
}

TEST(StrictGuardDeathTest, CallsTheHandlerBeforeAfterItsOwnLine) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  elsewhere = range.memory().data();  // the handler looks for the address
  EXPECT_EXIT(
      {
        install(info_action(previous_handler));
        const StrictGuard guard(range.memory(), describer);
        touch(range.memory().data());
      },
      ExitedWithCode(42), "stray access to 0x[0-9a-f]+: tensor a");
  EXPECT_EXIT(
      {
        install(plain_action(previous_plain_handler));
        const StrictGuard guard(range.memory(), describer);
        touch(range.memory().data());
      },
      ExitedWithCode(44), "stray access to 0x[0-9a-f]+: tensor a");
}

TEST(StrictGuardDeathTest, TakesADefaultActionForNoHandlerWhateverItsFlags) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  for (void (*const none)(int) : {SIG_DFL, SIG_IGN}) {
    EXPECT_EXIT(
        {
          install(plain_action(none, SA_SIGINFO));
          const StrictGuard guard(range.memory(), describer);
          touch(range.memory().data());
        },
        KilledBySignal(SIGSEGV), "tensor a");
  }
}

// It mends the fault, as the handler of a lazy loader does. Guarded bytes are not to be had that way.
void mending_handler(int, siginfo_t* info, void*) {
  say("mended\n");
  mprotect(info->si_addr, page_bytes(), PROT_READ);
}

TEST(StrictGuardDeathTest, EndsTheProgramWhenTheHandlerBeforeReturns) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  EXPECT_EXIT(
      {
        install(info_action(mending_handler));
        const StrictGuard guard(range.memory(), describer);
        touch(range.memory().data());
        _exit(0);
      },
      KilledBySignal(SIGSEGV), "tensor a\nmended\n$");
}

struct sigaction before_crash_reporter;

// What Python's faulthandler does: it puts back what was there before itself, speaks and raises the signal.
void crash_reporter(int signal) {
  sigaction(signal, &before_crash_reporter, nullptr);
  say("traceback\n");
  raise(signal);
}

void last_handler(int) {
  _exit(45);
}

TEST(StrictGuardDeathTest, LetsACrashReporterSpeakAndRaiseTheSignalAgain) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  for (const int flags : {0, SA_NODEFER, SA_NODEFER | SA_ONSTACK}) {
    EXPECT_EXIT(
        {
          before_crash_reporter = plain_action(SIG_DFL);
          install(plain_action(crash_reporter, flags));
          const StrictGuard guard(range.memory(), describer);
          touch(range.memory().data());
        },
        KilledBySignal(SIGSEGV), "tensor a\ntraceback\n$");
  }
  // A raised signal that nothing blocks goes to the next handler at once.
  EXPECT_EXIT(
      {
        before_crash_reporter = plain_action(last_handler);
        install(plain_action(crash_reporter, SA_NODEFER));
        const StrictGuard guard(range.memory(), describer);
        touch(range.memory().data());
      },
      ExitedWithCode(45), "tensor a\ntraceback\n$");
}

TEST(StrictGuardDeathTest, EndsTheProgramWhereTheHandlerBeforePutsTheGuardsBack) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  for (const int flags : {0, SA_NODEFER}) {
    EXPECT_EXIT(
        {
          install(plain_action(crash_reporter, flags));
          const StrictGuard guard(range.memory(), describer);
          sigaction(SIGSEGV, nullptr, &before_crash_reporter);  // the guard's
          touch(range.memory().data());
        },
        KilledBySignal(SIGSEGV), "tensor a\ntraceback\n$");
  }
}

void mask_telling_handler(int) {
  say(is_blocked(SIGSEGV) ? "SEGV blocked, " : "SEGV open, ");
  say(is_blocked(SIGUSR1) ? "USR1 blocked\n" : "USR1 open\n");
  _exit(0);
}

TEST(StrictGuardDeathTest, BlocksTheSignalsThatTheHandlerBeforeAskedFor) {
  if (testing::kSanitized) GTEST_SKIP() << "the thread sanitizer sets the masks of handlers itself";
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  const auto touch_with = [&](int flags, int also_blocked) {
    struct sigaction action = plain_action(mask_telling_handler, flags);
    if (also_blocked != 0) sigaddset(&action.sa_mask, also_blocked);
    install(action);
    const StrictGuard guard(range.memory(), describer);
    touch(range.memory().data());
  };
  EXPECT_EXIT(touch_with(0, 0), ExitedWithCode(0), "SEGV blocked, USR1 open");
  EXPECT_EXIT(touch_with(SA_NODEFER, SIGUSR1), ExitedWithCode(0), "SEGV open, USR1 blocked");
  EXPECT_EXIT(touch_with(SA_NODEFER, SIGSEGV), ExitedWithCode(0), "SEGV blocked, USR1 open");
}

sigjmp_buf way_out;

void leaving_handler(int) {
  siglongjmp(way_out, 1);
}

TEST(StrictGuardDeathTest, ReportsAgainAfterTheHandlerBeforeHasLeft) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  EXPECT_EXIT(
      {
        install(plain_action(leaving_handler));
        const StrictGuard guard(range.memory(), describer);
        static int times = 0;  // a local variable might not outlive the jump
        for (; times < 3; ++times)
          if (sigsetjmp(way_out, 1) == 0) touch(range.memory().data());
        _exit(0);
      },
      ExitedWithCode(0), "^(terrace: error: stray access to 0x[0-9a-f]+: tensor a\n){3}$");
}

void handler_of_one_signal(int) {
  static int calls = 0;
  say("once\n");
  if (++calls == 3) _exit(1);
}

TEST(StrictGuardDeathTest, CallsAHandlerThatWantsOneSignalOnce) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const PageMapping other = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  EXPECT_EXIT(
      {
        install(plain_action(handler_of_one_signal, static_cast<int>(SA_RESETHAND)));
        const StrictGuard guard(range.memory(), describer);
        touch(other.memory().data());
      },
      KilledBySignal(SIGSEGV), "^once\n$");
}

TEST(StrictGuardDeathTest, LetsASentSignalBeIgnoredAsBefore) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("tensor a");
  EXPECT_EXIT(
      {
        install(plain_action(SIG_IGN));
        const StrictGuard guard(range.memory(), describer);
        raise(SIGSEGV);
        _exit(0);
      },
      ExitedWithCode(0), "^$");
}

TEST(StrictGuardDeathTest, LetsOtherFaultsAndSentSignalsEndTheProgramAsBefore) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const PageMapping other = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("guarded");
  const auto without_handler = [] {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &action, nullptr);
  };
  EXPECT_EXIT(
      {
        without_handler();
        const StrictGuard guard(range.memory(), describer);
        touch(other.memory().data());
      },
      KilledBySignal(SIGSEGV), "^$");
  EXPECT_EXIT(
      {
        without_handler();
        const StrictGuard guard(range.memory(), describer);
        raise(SIGSEGV);
      },
      KilledBySignal(SIGSEGV), "^$");
}

TEST(StrictGuard, RestoresTheHandlerBeforeWhenTheLastGuardGoes) {
  const PageMapping range = PageMapping::inaccessible(2 * page_bytes());
  const FixedDescriber describer("guarded");
  struct sigaction before = {}, during = {}, after = {};
  sigaction(SIGSEGV, nullptr, &before);
  {
    const StrictGuard first(range.memory().first(page_bytes()), describer);
    { const StrictGuard second(range.memory().last(page_bytes()), describer); }
    sigaction(SIGSEGV, nullptr, &during);
  }
  sigaction(SIGSEGV, nullptr, &after);
  EXPECT_NE(during.sa_sigaction, before.sa_sigaction);
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
  EXPECT_EQ(after.sa_flags & SA_SIGINFO, before.sa_flags & SA_SIGINFO);
}

TEST(StrictGuardDeathTest, ForgetsARangeWhoseGuardHasGone) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const PageMapping other = PageMapping::inaccessible(page_bytes());
  const FixedDescriber gone("gone"), stays("stays");
  elsewhere = range.memory().data();
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = previous_handler;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        const StrictGuard second(other.memory(), stays);
        { const StrictGuard first(range.memory(), gone); }
        touch(elsewhere);
      },
      ExitedWithCode(42), "");
}

TEST(StrictGuard, GivesTheThreadAnAlternateStack) {
  const PageMapping range = PageMapping::inaccessible(page_bytes());
  const FixedDescriber describer("guarded");
  std::thread([&] {
    const StrictGuard guard(range.memory(), describer);
    stack_t stack;
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
    EXPECT_GE(stack.ss_size, size_t{16 * 1024});
  }).join();
}

}  // namespace
}  // namespace terrace::strict_guard_test
