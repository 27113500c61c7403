#include <terrace/base/workers.h>

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <cfenv>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace terrace {

struct Workers::Arena {
  // TBB starts no more threads than the machine has cores unless it is told to; a user's --threads is exact.
  tbb::global_control parallelism;
  tbb::task_arena arena;

  explicit Arena(size_t thread_count)
      : parallelism(tbb::global_control::max_allowed_parallelism, thread_count),
        arena(static_cast<int>(thread_count), 1) {}
};

Workers::Workers(size_t thread_count)
    : thread_count_(thread_count != 0 ? thread_count
                                      : static_cast<size_t>(tbb::this_task_arena::max_concurrency())),
      arena_(std::make_unique<Arena>(thread_count_)) {}

Workers::~Workers() = default;

void Workers::parallel_for(size_t count, FunctionRef<void(size_t)> body) {
  if (count == 0) return;
  if (thread_count_ == 1 || count == 1) {
    arena_->arena.execute([&] {
      reset_floating_point_environment();
      for (size_t i = 0; i < count; ++i) body(i);
    });
    return;
  }
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<size_t>(0, count, 1),
        [&](const tbb::blocked_range<size_t>& range) {
          reset_floating_point_environment();
          for (size_t i = range.begin(); i != range.end(); ++i) body(i);
        },
        tbb::simple_partitioner());
  });
}

size_t Workers::current_thread_index() const {
  const int index = tbb::this_task_arena::current_thread_index();
  return index < 0 ? 0 : static_cast<size_t>(index);
}

void reset_floating_point_environment() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80u);  // all exceptions masked, round to nearest, neither FTZ nor DAZ
#else
  std::fesetenv(FE_DFL_ENV);
#endif
}

}  // namespace terrace
