// The flags of `terrace plan` for stages of pipelines.
#pragma once

#include <cstdint>

#include <terrace/reference/planning/pipeline_stages.h>

#include "command_line.h"
#include "flags/train_flags.h"

namespace terrace {

class StageFlags {
 public:
  void add_to(Command& command);
  bool are_given() const { return stages_ > 0 || compares_; }
  bool compares() const { return compares_; }
  // Gives `flags` the ranks of one stage, which the keys of the batch count, if --stages is given. Throws
  // Error(config) where the ranks are no multiple of the stages.
  void take_ranks(TrainFlags& flags);
  // All ranks; 0: as the configuration says.
  uint32_t ranks() const { return ranks_; }
  uint32_t stages() const { return stages_; }

 private:
  uint32_t stages_ = 0;  // 0: not given
  bool compares_ = false;
  uint32_t ranks_ = 0;
};

}  // namespace terrace
