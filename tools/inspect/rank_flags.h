// The flags of `terrace plan` for what is between ranks, and for what many of them lose.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/reference/planning/machine_rates.h>

#include "command_line.h"

namespace terrace {

class RankFlags {
 public:
  void add_to(Command& command);
  // Throw Error(config) where a value of a flag is none, and where a flag means nothing in such a run.
  void require_values() const;
  void require_sense(uint32_t ranks, bool has_times) const;
  // Takes what is given of links.
  void take_links(MachineRates& rates) const;

  uint32_t ranks_per_host() const { return ranks_per_host_; }
  // Multiplications and additions of a rank in a second; 0: not given.
  double flops() const;
  // The spread of the ranks' times as a part of them, and seconds; 0: not given.
  double jitter() const;
  double mtbf_seconds() const;
  double commit_seconds() const;
  double restart_seconds() const;

 private:
  uint32_t ranks_per_host_ = 1;
  std::string network_, network_latency_, network_delay_, host_link_, host_link_latency_;
  std::string flops_, jitter_, mtbf_, commit_time_, restart_time_;
};

}  // namespace terrace
