#include <terrace/aio/engines/piece_ledger.h>

#include <time.h>

namespace terrace::io {
namespace {

// About a second: longer than the kernel is short of memory for a request, and nobody waits for ever.
constexpr uint32_t kMostFailures = 1000;
constexpr timespec kBetweenCalls{0, 1'000'000};

}  // namespace

int CallPatience::failed(int error) {
  if (++failures_ >= kMostFailures) return error;
  nanosleep(&kBetweenCalls, nullptr);
  return 0;
}

}  // namespace terrace::io
