#include <terrace/runtime/ranks/early_end.h>

#include <signal.h>

#include <atomic>

namespace terrace {
namespace {

// A signal handler has no argument of ours, so this variable is global.
std::atomic<const LauncherLink*> g_link{nullptr};
static_assert(std::atomic<const LauncherLink*>::is_always_lock_free, "read inside a signal handler");

void on_sigterm(int number) {
  say_that_mpirun_asks();
  signal(number, SIG_DFL);
  raise(number);  // delivered when this handler returns
}

}  // namespace

void say_that_mpirun_asks() {
  if (const LauncherLink* const link = g_link) link->tell({.kind = LauncherWord::Kind::asked});
}

EarlyEnd::EarlyEnd(const LauncherLink& link) {
  if (!link.is_open()) return;
  g_link = &link;
  signal(SIGTERM, on_sigterm);
}

EarlyEnd::~EarlyEnd() {
  if (g_link.exchange(nullptr) != nullptr) signal(SIGTERM, SIG_DFL);
}

}  // namespace terrace
