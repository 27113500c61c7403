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

  // --optimizer, --momentum and --nesterov, under the headline `group`.
  void add_flags(Command& command, const char* group);
  // Any case of the name. Throws Error(config) for what there is not or does not fit together.
  OptimizerSettings settings() const;
};

}  // namespace terrace
