// RankStarter: starts the ranks of a run, as often as it is asked to, and knows which are left: on this host
// (LocalStarter), or on several hosts with mpirun (HostStarter).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

#include "console.h"

namespace terrace {

// How the ranks of a run have ended that were started once.
struct AttemptEnd {
  int status = 0;
  bool was_stopped = false;    // somebody has asked them to end
  bool may_have_lost = false;  // and not ended for reasons that ranks have said
  bool has_kept = false;       // a state of its own, and none of a run before it is left
};

class RankStarter {
 public:
  virtual ~RankStarter() = default;
  virtual uint32_t ranks() const = 0;  // that it starts the next time
  // Starts the ranks with the arguments of this program, for the `restart`-th time again, and waits for their
  // end.
  virtual AttemptEnd run(const std::vector<std::string>& arguments, uint32_t restart) = 0;
  // Leaves out what the last run has lost. Returns false where it has lost nothing. No process of it is left
  // that could write to the run's state.
  virtual bool leave_out_lost() = 0;
};

class LocalStarter final : public RankStarter {
 public:
  // An empty `log_folder` stands for none. `console` outlives this.
  LocalStarter(uint32_t ranks, std::filesystem::path log_folder, Console& console)
      : ranks_(ranks), log_folder_(std::move(log_folder)), console_(console) {}
  uint32_t ranks() const override { return ranks_; }
  AttemptEnd run(const std::vector<std::string>& arguments, uint32_t restart) override;
  bool leave_out_lost() override;

 private:
  uint32_t ranks_;
  const std::filesystem::path log_folder_;
  Console& console_;
  uint32_t deaths_ = 0;  // of the last run
};

class HostStarter final : public RankStarter {
 public:
  // The same. Throws Error(config) where there is no mpirun of Open MPI.
  HostStarter(std::vector<HostSlots> hosts, std::filesystem::path log_folder, Console& console);
  uint32_t ranks() const override;
  AttemptEnd run(const std::vector<std::string>& arguments, uint32_t restart) override;
  bool leave_out_lost() override;

 private:
  struct RankEnd {
    bool has_died = false;  // by itself
    bool is_over = false;   // its process
  };
  bool take_stock(HostSlots& host, const std::vector<RankEnd>& ends, bool is_free);

  std::vector<HostSlots> hosts_;
  const std::filesystem::path log_folder_;
  const uint32_t new_gradient_group_;
  Console& console_;
  // Of the last run.
  std::string run_;
  std::vector<RankEnd> ends_;  // by rank
  bool has_lost_ = false;
  bool is_unheard_ = false;
};

}  // namespace terrace
