// terrace_ranks: this process among those that train together, as a program of C has it. A store that is
// divided over them stands on it: while there is one, the others are told what the store does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/log.h>
#include <terrace/base/mutex.h>
#include <terrace/capi/callback_log.h>
#include <terrace/capi/names.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace/runtime/ranks/host_share.h>
#include <terrace/runtime/ranks/mutual_wait.h>
#include <terrace/runtime/ranks/run_ranks.h>
#include <terrace_run.h>

namespace terrace::c {

// A program of C hears everything by its log.
class ProgramOfC final : public RankProgram {
 public:
  explicit ProgramOfC(const terrace_ranks_options& options)
      : ends_process_(static_cast<terrace_ends_process>(options.ends_process)),
        log_(options.log, options.log_context) {}

  // Not the first rank: its errors have this before them.
  void speak_for(std::string ranks) { ranks_ = std::move(ranks); }
  // What another rank came to has reached the program by a call.
  void has_been_told() { is_told_ = true; }
  // The waits of the thread that trains, which a failure of the others ends; it outlives the next call.
  void look_at(const StepWatch& watch, bool is_of_store);
  Log& log() override { return log_; }
  void say(const Error& failure) override;
  void say_as(const std::string& ranks, const Error& failure) override;
  void end_at_once() override;
  void another_has_failed(const Error& failure) override;

 private:
  bool ends_process() const;

  const terrace_ends_process ends_process_;
  std::atomic<bool> is_told_ = false;
  mutable Mutex mutex_;
  const StepWatch* watch_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  bool has_store_ TERRACE_GUARDED_BY(mutex_) = false;
  CallbackLog log_;
  std::string ranks_;
};

}  // namespace terrace::c

struct terrace_ranks {
  // Joins the others.
  explicit terrace_ranks(const terrace_ranks_options& options);
  terrace_ranks(const terrace_ranks&) = delete;
  terrace_ranks& operator=(const terrace_ranks&) = delete;

  // While a store trains on them its watch is what the others are told of.
  void serve(terrace::StepWatch& of_store);
  void serve_none();
  bool has_store() const { return watch != &own_watch; }
  // Throws Error(misuse) where there is one.
  void require_no_store(const terrace::c::Subject& action) const;
  // Throws Error(peer) that names a rank where its death is behind the failure, and else nothing.
  void throw_death_behind(const terrace::Error& failure);
  // This rank cannot go on: what the others ask of it fails, and names it.
  void leave(const std::string& why) const;
  void set_patience(const terrace_patience& patience);
  // No wait is given up any more. Where one is being given up, waits for that.
  void end_patience();

  // Claims and frees what the ranks do together for the calling thread, which a store on them does too. True
  // if it is claimed.
  bool try_claim() { return !is_busy_.exchange(true, std::memory_order_acquire); }
  void free_claim() { is_busy_.store(false, std::memory_order_release); }

  const uint32_t forks;  // terrace::c::forks() of the process that joined
  const bool gathers_by_nccl;
  terrace::c::ProgramOfC program;
  terrace::RunRanks ranks;
  const terrace::RankSeat seat;
  const std::string launcher;
  std::string where;
  uint64_t step = 0;  // as the others are told
  terrace::StepWatch own_watch;
  terrace::StepWatch* watch = &own_watch;  // of the thread that trains

 private:
  std::atomic<bool> is_busy_ = false;
  terrace::RankSeat join(const terrace_ranks_options& options);
  void follow();
  void give_up();

  terrace_patience patience_;
  std::unique_ptr<const terrace::RankWatch::Following> following_;
  // Of several ranks. The last members: they look at the others.
  std::unique_ptr<terrace::WatchdogThread> watchdog_;
  std::unique_ptr<terrace::MutualWaitThread> waits_;  // of the first rank
};
