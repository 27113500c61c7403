// RankWatch: what a rank of a run knows of the others while it trains, and what the user is told of that: who
// has died, of what and where; who is where while somebody waits. A death is told once, by one rank, and ends
// all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/mutex.h>
#include <terrace/comm/liveness/heartbeat.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/runtime/observe/control/job_status.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"

namespace terrace {

// Observes the run whose steps it tells. Functions may be called from any thread, those of an observer from
// that which trains.
class RankWatch final : public RunObserver {
 public:
  // Every rank makes it, and nothing is under way. Where the ranks cannot watch each other, there is a
  // warning, and nobody is watched. All arguments outlive this.
  RankWatch(MessageCommunicator& communicator, LauncherLink& launcher, Console& console);

  // While it lives, the others are told what the trainer does.
  class Following {
   public:
    explicit Following(Heartbeat* heartbeat) : heartbeat_(heartbeat) {}
    ~Following() {
      if (heartbeat_ != nullptr) heartbeat_->set_where(nullptr);
    }
    Following(const Following&) = delete;
    Following& operator=(const Following&) = delete;

   private:
    Heartbeat* const heartbeat_;
  };
  std::unique_ptr<Following> follow(Trainer& trainer);
  // What becomes of the run after a death: "the state is that of step 800: ...".
  void set_what_is_kept(std::string text);

  // The death behind what an operation with the others failed with, as the user is told of it; nothing where
  // there was none. Waits a moment for the news.
  std::optional<Error> death_behind(const Error& failure) const;
  // Tells the user of it, where this rank is the one that does, and nobody has yet.
  void say_death(const Error& death);
  // This rank ends because of a death.
  void leave();
  // This rank ends because a wait was too long (--stall-abort), and the process with it.
  void give_up();
  // This rank ends because of anything else; every rank does, and each calls it. The ranks tell the user of
  // every reason once, the first one where it has it too, with the ranks before it elsewhere. Returns the
  // exit status: the worst of all ranks, or `status` where the first rank does not tell it.
  int end_with(const Error& failure, int status);
  // Who keeps this rank waiting, in words; nothing where another rank says it.
  std::optional<std::string> who_is_where();

  // Sets the ranks of a status of the run. Only on rank 0.
  void describe(JobStatus& status) const;

  void step_done(const StepReport& report) override;
  void state_kept(const KeptState& kept) override;

 private:
  void lost(const RankLoss& loss);
  void end_late(const RankLoss& loss);
  int end_first(const Error& failure, int status);
  int end_another(const Error& failure, int status);
  void let_others_end(uint32_t own_news, std::span<const std::optional<LastWords>> all, uint32_t status);
  RankStanding standing() const;
  Error death_text(const RankLoss& loss) const;
  std::string text_of_standing(uint32_t rank, const KnownStanding& known) const;

  MessageCommunicator& communicator_;
  Console& console_;
  std::atomic<uint64_t> step_{0};                       // in progress
  std::atomic<uint64_t> step_ns_{0}, rank_wait_ns_{0};  // of the step before
  bool keeps_commits_ = false;                          // the trainer that it follows
  mutable Mutex mutex_;
  std::string kept_ TERRACE_GUARDED_BY(mutex_);
  bool said_ TERRACE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Heartbeat>
      heartbeat_;  // null: nobody is watched; the last member, since its thread uses the others
};

}  // namespace terrace
