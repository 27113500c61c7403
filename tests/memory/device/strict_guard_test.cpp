#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <thread>

#include <terrace/memory/device/strict_guard.h>
#include <terrace/memory/host/pages.h>

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
