// HeartbeatWatch: the watch of one of several ranks. Their heartbeat says who has died, of what and where,
// and who is where while somebody waits. A death is told once, by one rank, and ends all of them; what
// several ranks fail with is told once for all that have it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/mutex.h>
#include <terrace/comm/liveness/heartbeat.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/runtime/ranks/mutual_wait.h>
#include <terrace/runtime/ranks/rank_program.h>
#include <terrace/runtime/ranks/rank_watch.h>

namespace terrace {

class HeartbeatWatch final : public RankWatch {
 public:
  // Every rank makes it, and nothing is under way. Where the ranks cannot watch each other, there is a
  // warning, and nobody is watched. All arguments outlive this.
  HeartbeatWatch(MessageCommunicator& communicator, LauncherLink& launcher, RankProgram& program);

  Following follow(const FollowedLoop& loop) override;
  void set_what_is_kept(std::string text) override;
  void own_state_kept() override;
  std::optional<Error> death_behind(const Error& failure) const override;
  std::optional<Error> lost_rank() const override;
  void tell_of_losses(TellLoss tell) override;
  std::optional<RankLoss> loss_or_leave(const std::string& why) override;
  void end_with_death(const Error& death) override;
  int end_with(const Error& failure, int status) override;
  void give_up(std::string why) override;
  std::optional<std::string> who_is_where() override;
  std::string who_is_waited_for() override;
  std::optional<std::string> mutual_wait() override;
  void describe(JobStatus& status) const override;

  void step_done(const StepReport& report) override;
  void state_kept(const KeptState& kept) override;

 private:
  void lost(const RankLoss& loss);
  void end_late(const RankLoss& loss);
  void say_death(const Error& death);
  int end_first(const Error& failure, int status);
  int end_another(const Error& failure, int status);
  void let_others_end(uint32_t own_news, std::span<const std::optional<LastWords>> all, uint32_t status);
  RankStanding standing() const;
  Error death_text(const RankLoss& loss) const;
  Error failure_text(const RankLoss& loss) const;
  std::string text_of_those_behind(std::span<const KnownStanding> all) const;
  bool waits(uint32_t rank, std::span<const KnownStanding> all) const;
  std::string text_of_standing(uint32_t rank, const KnownStanding& known) const;

  MessageCommunicator& communicator_;
  RankProgram& program_;
  std::atomic<uint64_t> step_{0};                       // in progress
  std::atomic<uint64_t> step_ns_{0}, rank_wait_ns_{0};  // of the step before
  MutualWait mutual_wait_;                              // of the thread that asks for it
  bool keeps_commits_ = false;                          // the loop that it follows
  mutable Mutex mutex_;
  std::string kept_ TERRACE_GUARDED_BY(mutex_);
  bool said_ TERRACE_GUARDED_BY(mutex_) = false;
  Mutex tell_mutex_;
  TellLoss tell_loss_ TERRACE_GUARDED_BY(tell_mutex_);
  std::unique_ptr<Heartbeat>
      heartbeat_;  // null: nobody is watched; the last member, since its thread uses the others
};

}  // namespace terrace
