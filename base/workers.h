// The compute threads: one fixed set, one loop shape. Which thread runs which index never changes a result,
// because callers cut their work by shape alone and combine it in index order.
#pragma once

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
  // As Topology::binding_for() has it, all but the calling thread are bound to a processor of their own, from
  // when they join a loop until they leave it. The calling thread is not: threads that it starts would
  // inherit that.
  Workers(size_t thread_count, const Topology& topology);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t thread_count() const { return thread_count_; }
  const Binding& binding() const { return binding_; }

  // Calls body(i) once for every i in [0, count), on any of the threads, and returns when all are done. Every
  // thread runs with the default floating-point environment (round to nearest, denormals kept). The first
  // exception thrown by `body` is rethrown here. Not to be called from two threads at once (see beside()),
  // nor from inside `body`.
  void parallel_for(size_t count, FunctionRef<void(size_t)> body);

  // Loops for a second thread, beside those of the first: neither waits for the other's, and the threads that
  // help are the same few, which go where there is work. A thread is bound to nothing there: two loops would
  // meet on one processor and leave another idle.
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

// Resets rounding, flush-to-zero and denormals-are-zero of the calling thread to the defaults.
void reset_floating_point_environment();

}  // namespace terrace
