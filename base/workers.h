// The compute threads: one fixed set, one loop shape. Which thread runs which index never changes a result,
// because callers cut their work by shape alone and combine it in index order.
#pragma once

#include <cfenv>
#include <cstddef>
#include <memory>

#include <terrace/base/function_ref.h>
#include <terrace/base/topology.h>

namespace terrace {

class Workers {
 public:
  // `thread_count` includes the calling thread; 0 means one per available core. The threads run where the
  // system puts them.
  explicit Workers(size_t thread_count);
  // Binds every thread but the calling one to a processor of its own, as Topology::binding_for() says, from
  // when it joins a loop until it leaves it. The calling thread is not bound, because threads that it starts
  // would inherit the binding.
  Workers(size_t thread_count, const Topology& topology);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t thread_count() const { return thread_count_; }
  const Binding& binding() const { return binding_; }

  // Calls body(i) once for every i in [0, count), on any of the threads, and returns when all are done. Every
  // thread runs with the default floating-point environment (round to nearest, denormals kept), and has what
  // it had before afterwards. The first exception thrown by `body` is rethrown here. It must not be called
  // from two threads at once (see beside()), nor from inside `body`.
  void parallel_for(size_t count, FunctionRef<void(size_t)> body);

  // Returns workers for the loops of a second thread. Neither thread waits for the other's loops; the same
  // few threads help in both and go where there is work. No thread is bound in the second thread's loops: two
  // loops would meet on one processor and leave another idle.
  Workers beside() const;

  // The index of the calling worker in [0, thread_count()), valid inside `body`; for per-thread scratch
  // memory.
  size_t current_thread_index() const;

 private:
  struct Arena;
  Workers(size_t thread_count, Binding binding);
  size_t thread_count_;
  Binding binding_;
  std::unique_ptr<Arena> arena_;
};

// While one lives, rounding, flush-to-zero and denormals-are-zero of the thread that made it have their
// defaults; then they are again what they were, since the thread may be the program's.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint();
  ~DefaultFloatingPoint();
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace terrace
