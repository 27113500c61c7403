// The optimizer of a measurement, as its flags name it.
#pragma once

#include <string>

#include <terrace/optimizer_cpu/optimizer.h>

#include "command.h"

namespace terrace {

struct BenchOptimizer {
  std::string name = "adamw";
  double momentum = 0;
  bool nesterov = false;

  // Adds --optimizer, --momentum and --nesterov.
  void add_to(const FlagGroup& group);
  // The name may have any case. Throws Error(config) for an unknown optimizer or settings that do not fit
  // together.
  OptimizerSettings settings() const;
};

}  // namespace terrace
