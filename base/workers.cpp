#include <terrace/base/workers.h>

#include <sched.h>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace terrace {

namespace {

// Gives the threads that join an arena their processor, and back what they had when they leave: TBB lends the
// same threads to other arenas.
class Binder final : public tbb::task_scheduler_observer {
 public:
  Binder(tbb::task_arena& arena, const std::vector<uint32_t>& cpus)
      : tbb::task_scheduler_observer(arena), cpus_(cpus) {
    CPU_ZERO(&before_);
    if (!cpus_.empty() && sched_getaffinity(0, sizeof(before_), &before_) == 0) observe(true);
  }
  ~Binder() override { observe(false); }
  Binder(const Binder&) = delete;
  Binder& operator=(const Binder&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    const int index = tbb::this_task_arena::current_thread_index();
    if (!is_worker || index < 0 || static_cast<size_t>(index) >= cpus_.size()) return;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(cpus_[static_cast<size_t>(index)], &mine);
    // Refused only when the processor has gone since: then the thread goes on where it may.
    static_cast<void>(sched_setaffinity(0, sizeof(mine), &mine));
  }
  void on_scheduler_exit(bool is_worker) override {
    if (is_worker) static_cast<void>(sched_setaffinity(0, sizeof(before_), &before_));
  }

 private:
  const std::vector<uint32_t> cpus_;
  cpu_set_t before_;
};

}  // namespace

struct Workers::Arena {
  // TBB starts no more threads than the machine has cores unless it is told to; a user's --threads is exact.
  tbb::global_control parallelism;
  tbb::task_arena arena;
  Binder binder;

  Arena(size_t thread_count, const Binding& binding)
      : parallelism(tbb::global_control::max_allowed_parallelism, thread_count),
        arena(static_cast<int>(thread_count), 1),
        binder(arena, binding.cpus) {}
};

Workers::Workers(size_t thread_count)
    : Workers(thread_count != 0 ? thread_count : read_topology().default_thread_count(),
              Binding{{}, "not asked for"}) {}

Workers::Workers(size_t thread_count, const Topology& topology)
    : Workers(thread_count != 0 ? thread_count : topology.default_thread_count(),
              topology.binding_for(thread_count != 0 ? thread_count : topology.default_thread_count())) {}

Workers::Workers(size_t thread_count, Binding binding)
    : thread_count_(thread_count),
      binding_(std::move(binding)),
      arena_(std::make_unique<Arena>(thread_count_, binding_)) {}

Workers::~Workers() = default;

void Workers::parallel_for(size_t count, FunctionRef<void(size_t)> body) {
  if (count == 0) return;
  if (thread_count_ == 1 || count == 1) {
    arena_->arena.execute([&] {
      const DefaultFloatingPoint environment;
      for (size_t i = 0; i < count; ++i) body(i);
    });
    return;
  }
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<size_t>(0, count, 1),
        [&](const tbb::blocked_range<size_t>& range) {
          const DefaultFloatingPoint environment;
          for (size_t i = range.begin(); i != range.end(); ++i) body(i);
        },
        tbb::simple_partitioner());
  });
}

Workers Workers::beside() const {
  return Workers(thread_count_, Binding{{}, "beside the loops of another thread"});
}

size_t Workers::current_thread_index() const {
  const int index = tbb::this_task_arena::current_thread_index();
  return index < 0 ? 0 : static_cast<size_t>(index);
}

#if defined(__x86_64__)

DefaultFloatingPoint::DefaultFloatingPoint() : before_(_mm_getcsr()) {
  _mm_setcsr(0x1f80u);  // all exceptions masked, round to nearest, neither FTZ nor DAZ
}

DefaultFloatingPoint::~DefaultFloatingPoint() {
  _mm_setcsr(before_);
}

#else

DefaultFloatingPoint::DefaultFloatingPoint() {
  std::fegetenv(&before_);
  std::fesetenv(FE_DFL_ENV);
}

DefaultFloatingPoint::~DefaultFloatingPoint() {
  std::fesetenv(&before_);
}

#endif

}  // namespace terrace
