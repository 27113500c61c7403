// RankWatch: what a rank of a run knows of the others while it trains, and how it ends. Where there is one
// rank, nobody else is there (NoOtherRanks), so that no caller asks how many there are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/comm/liveness/heartbeat.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/runtime/observe/control/job_status.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/ranks/rank_program.h>

namespace terrace {

// The loop that the others are told of.
struct FollowedLoop {
  const StepWatch& watch;
  uint64_t completed_steps = 0;
  bool keeps_commits = false;
};

// Observes the run whose steps it tells the others. Functions may be called from any thread, those of an
// observer from that which trains.
class RankWatch : public RunObserver {
 public:
  // While it lives, the others are told what the loop does.
  class Following {
   public:
    explicit Following(std::function<void()> end) : end_(std::move(end)) {}
    ~Following() {
      if (end_) end_();
    }
    Following(const Following&) = delete;
    Following& operator=(const Following&) = delete;

   private:
    const std::function<void()> end_;
  };
  // `loop.watch` outlives the result, and this does too.
  virtual Following follow(const FollowedLoop& loop) = 0;
  // What becomes of the run after a death: "the state is that of step 800: ...".
  virtual void set_what_is_kept(std::string text) = 0;
  // The run has kept a state of its own, which `terrace launch --restarts` goes on from.
  virtual void own_state_kept() = 0;

  // The death behind what an operation with the others failed with, as the user is told of it; nothing where
  // there was none. Waits a moment for the news.
  virtual std::optional<Error> death_behind(const Error& failure) const = 0;
  // The first rank that has died, or has left because of a failure, as the user is told of it; nothing where
  // none has.
  virtual std::optional<Error> lost_rank() const = 0;
  // Who else has to know of the first rank that is lost, and why: called on any thread, and at once where one
  // is lost already. Null: nobody; when that has returned, the earlier one is not called any more.
  using TellLoss = std::function<void(uint32_t rank, const std::string& why)>;
  virtual void tell_of_losses(TellLoss tell) = 0;
  // What this rank exchanges past the communicator has failed. Returns the rank that is lost and so behind
  // it, or tells the others that this one leaves because of it. Waits a moment for the news.
  virtual std::optional<RankLoss> loss_or_leave(const std::string& why) = 0;
  // This rank ends because of a death. The user is told by the rank that tells it, where nobody has yet.
  virtual void end_with_death(const Error& death) = 0;
  // This rank ends because of anything else; every rank does, and each calls it. The ranks tell the user of
  // every reason once, the first one where it has it too, with the ranks before it elsewhere. Returns the
  // exit status: the worst of all ranks, or `status` where the first rank does not tell it.
  virtual int end_with(const Error& failure, int status) = 0;
  // This rank ends because a wait was too long, and the process with it; `why` is for the others.
  virtual void give_up(std::string why) = 0;

  // Who keeps this rank waiting, in words; nothing where another rank says it, or nobody does.
  virtual std::optional<std::string> who_is_where() = 0;
  // The same in any case.
  virtual std::string who_is_waited_for() = 0;
  // Of the first rank, called every second: who is where, in words, where all ranks wait for each other and
  // nothing moves any more (mutual_wait.h); else nothing.
  virtual std::optional<std::string> mutual_wait() { return std::nullopt; }
  // Sets the ranks of a status of the run. Only on rank 0.
  virtual void describe(JobStatus& status) const = 0;
};

// What a rank has that is alone, or has not met the others: each failure is its own.
class NoOtherRanks final : public RankWatch {
 public:
  // `program` outlives this.
  NoOtherRanks(RankProgram& program, bool is_first) : program_(program), is_first_(is_first) {}

  Following follow(const FollowedLoop&) override { return Following(nullptr); }
  void set_what_is_kept(std::string) override {}
  void own_state_kept() override {}
  std::optional<Error> death_behind(const Error&) const override { return std::nullopt; }
  std::optional<Error> lost_rank() const override { return std::nullopt; }
  void tell_of_losses(TellLoss) override {}
  std::optional<RankLoss> loss_or_leave(const std::string&) override { return std::nullopt; }
  void end_with_death(const Error&) override {}
  int end_with(const Error& failure, int status) override {
    is_first_ ? program_.say(failure) : program_.say_as("", failure);
    return status;
  }
  void give_up(std::string) override {}
  std::optional<std::string> who_is_where() override { return std::nullopt; }
  std::string who_is_waited_for() override { return ""; }
  void describe(JobStatus&) const override {}

 private:
  RankProgram& program_;
  const bool is_first_;
};

}  // namespace terrace
