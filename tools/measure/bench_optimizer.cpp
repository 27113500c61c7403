#include "measure/bench_optimizer.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include <terrace/base/error.h>

#include "command_line.h"

namespace terrace {
namespace {

struct Named {
  const char* name;
  OptimizerKind kind;
};
constexpr Named kOptimizers[] = {{"adamw", OptimizerKind::adam},
                                 {"adam", OptimizerKind::adam},
                                 {"adagrad", OptimizerKind::adagrad},
                                 {"lion", OptimizerKind::lion},
                                 {"sgd", OptimizerKind::sgd}};

}  // namespace

void BenchOptimizer::add_flags(Command& command, const char* group) {
  command.add_option("--optimizer", name, "What updates them (default adamw)")
      .type_name("adamw|adam|adagrad|lion|sgd")
      .group(group);
  add_number(command, "--momentum", 0, 1, momentum, "Of sgd, below 1 (default 0: it keeps no moment)", group);
  command.add_flag("--nesterov", nesterov, "Of sgd with a momentum").group(group);
}

OptimizerSettings BenchOptimizer::settings() const {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto* const named =
      std::ranges::find_if(kOptimizers, [&](const Named& one) { return lower == one.name; });
  if (named == std::end(kOptimizers))
    refuse("--optimizer " + name, "there is no such optimizer", "give adamw, adam, adagrad, lion or sgd");
  if (named->kind != OptimizerKind::sgd && momentum != 0)
    refuse("--momentum", lower + " has none", "leave it out, or give --optimizer sgd");
  if (momentum >= 1) refuse("--momentum 1", "it is not below 1", "give for example 0.9");
  if (nesterov && momentum == 0)
    refuse("--nesterov", "there is no momentum", "give --optimizer sgd --momentum 0.9");
  OptimizerSettings settings;
  settings.kind = named->kind;
  settings.lr = 1e-4;
  settings.weight_decay = 0.01;
  settings.adamw_mode = lower == "adamw";
  settings.momentum = momentum;
  settings.nesterov = nesterov;
  if (settings.kind == OptimizerKind::lion) settings.beta2 = 0.99;
  return settings;
}

}  // namespace terrace
