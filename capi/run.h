// terrace_run: a training that is followed. It stands on its store, and its threads look at it: whichever
// goes first, the threads end before the store does.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/capi/store.h>
#include <terrace/runtime/observe/control/job_control.h>
#include <terrace/runtime/observe/log/memory_lines.h>
#include <terrace/runtime/observe/monitor/run_monitor.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace_run.h>

struct terrace_run {
  // Opens the files and the socket; see terrace_run_begin().
  terrace_run(terrace_store& store, const terrace_run_options& options);
  ~terrace_run();
  terrace_run(const terrace_run&) = delete;
  terrace_run& operator=(const terrace_run&) = delete;

  // The store goes: nothing looks at it any more.
  void leave_store();
  // Carries out what was asked for over the socket.
  void serve();

  const uint32_t forks;  // terrace::c::forks() of the process that began it
  terrace_store* store;  // null when it is gone
  const terrace_run_save_fn save;
  void* const save_context;
  terrace::c::CallbackLog log;
  terrace::LogRecord said;  // what goes to the log, for the log of steps
  terrace::StepLog steps;
  terrace::MemoryLines memory;
  std::optional<terrace::RunMonitor> monitor;
  terrace::OffloadCounters before;  // when the last step was done
  std::atomic<bool> is_to_stop = false;
  std::unique_ptr<terrace::WatchdogThread> watchdog;
  std::unique_ptr<terrace::JobControl> control;
  std::vector<terrace::RunObserver*> observers;
};
